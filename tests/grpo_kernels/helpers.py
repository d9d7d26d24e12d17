"""Inputs for the loss, and the loss and gradient by a chosen backend."""

from dataclasses import dataclass, replace

import pytest
import torch

from grpo_kernels import GRPOLossConfig, grpo_loss
from grpo_kernels.backend import has_triton

KERNEL_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(not has_triton(), reason="triton is not installed")
FUSED = ["torch", pytest.param("triton", marks=needs_triton)]
ALL_BACKENDS = ["eager", *FUSED]
LOSS_TYPES = ["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"]


def device_of(backend: str) -> str:
    return KERNEL_DEVICE if backend == "triton" else "cpu"


def config(loss_type="dapo", **options) -> GRPOLossConfig:
    """A configuration that every loss type accepts."""
    defaults = {"dr_grpo": {"max_completion_length": 9}, "cispo": {"epsilon_high": 1.2}}
    return GRPOLossConfig(loss_type=loss_type, **{**defaults.get(loss_type, {}), **options})


@dataclass(frozen=True)
class Batch:
    """Arguments of ``grpo_loss``."""

    logits: torch.Tensor
    ids: torch.Tensor
    advantages: torch.Tensor
    options: dict

    def to(self, device=None, dtype=None) -> "Batch":
        """On a device; ``dtype`` is that of the logits."""
        options = {k: v.to(device) if torch.is_tensor(v) else v for k, v in self.options.items()}
        logits = self.logits.to(device=device, dtype=dtype)
        return Batch(logits, self.ids.to(device), self.advantages.to(device), options)

    def but(self, **changes) -> "Batch":
        """With other fields or options."""
        fields = {k: changes.pop(k) for k in ("logits", "ids", "advantages") if k in changes}
        return replace(self, **fields, options={**self.options, **changes})


def make_batch(batch=3, length=5, vocabulary=37, seed=0, scale=2.0, dtype=torch.float64) -> Batch:
    """Random logits, lengths from 1 to ``length``, old log-probabilities near the policy's, a reference."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    # Rounded to the dtype first, so that every backend sees the same numbers.
    logits = (scale * normal(batch, length, vocabulary)).to(dtype)
    ids = torch.randint(vocabulary, (batch, length), generator=generator)
    logps = torch.log_softmax(logits.double(), -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    options = {
        "completion_mask": torch.arange(length) < lengths.unsqueeze(-1),
        "old_logps": logps + 0.3 * normal(batch, length),
        "ref_logps": logps + 0.3 * normal(batch, length),
    }
    return Batch(logits, ids, normal(batch), options)


def run(batch: Batch, backend: str, config: GRPOLossConfig, **options):
    """``(output, gradient of the logits)`` on the CPU; the logits are an intermediate of the graph."""
    batch = batch.to(device_of(backend))
    leaf = batch.logits.clone().requires_grad_()
    output = grpo_loss(
        leaf * 1, batch.ids, batch.advantages, **{**batch.options, **options}, backend=backend, config=config
    )
    output.loss.backward()
    return output, leaf.grad.cpu()


def assert_same(actual, expected, tolerance):
    """Equal loss, gradient and per-token values."""
    (actual, actual_grad), (expected, expected_grad) = actual, expected
    for name in ("loss", "logps", "entropy", "kl", "ratio"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(
                one.detach().cpu().double(), other.detach().cpu().double(), rtol=tolerance, atol=tolerance, msg=name
            )
    for name, value in expected.metrics.items():
        assert abs(actual.metrics[name].item() - value.item()) <= tolerance * max(1, abs(value.item())), name
    torch.testing.assert_close(actual_grad.double(), expected_grad.double(), rtol=tolerance, atol=tolerance)
