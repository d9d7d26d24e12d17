"""Against float64 the fused loss is never less exact than the eager one in the same dtype."""

import pytest
import torch

from grpo_kernels import GRPOLossConfig, grpo_loss, token_logps

from .helpers import FUSED, Batch, device_of, make_batch

VOCABULARIES = [17, 1000, 32001, 50257, 151936]


def values(batch: Batch, backend: str, temperature: float) -> dict[str, torch.Tensor]:
    """Loss, log-probabilities, entropies and gradient, in float64 on the CPU."""
    options = GRPOLossConfig(beta=0.04, temperature=temperature, entropy_coef=0.01)
    batch = batch.to(device_of(backend))
    logits = batch.logits.requires_grad_()
    output = grpo_loss(logits, batch.ids, batch.advantages, **batch.options, backend=backend, config=options)
    (grad,) = torch.autograd.grad(output.loss, logits)
    found = {"loss": output.loss, "logps": output.logps, "entropy": output.entropy, "grad": grad}
    return {key: value.detach().cpu().double() for key, value in found.items()}


def as_view(logits: torch.Tensor, layout: str) -> torch.Tensor:
    """The same logits as part of a larger tensor."""
    if layout == "contiguous":
        return logits
    batch, length, vocabulary = logits.shape
    wide = logits.new_zeros(batch, length + 1, vocabulary)
    view = wide[:, :-1] if layout == "logits[:, :-1]" else wide[:, -length:]
    return view.copy_(logits)


@pytest.mark.parametrize("layout", ["contiguous", "logits[:, :-1]", "logits[:, -T:]"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("backend", FUSED)
def test_no_larger_error_than_eager(backend, vocabulary, dtype, layout):
    temperature = 0.7
    batch = make_batch(2, 3, vocabulary, scale=4.0, dtype=dtype)
    # One token is almost certain, as most tokens of a trained model are.
    batch.logits[0, 0, batch.ids[0, 0]] = 30.0
    logps = token_logps(batch.logits.double(), batch.ids, temperature)
    shift = torch.linspace(-0.3, 0.3, logps.numel(), dtype=torch.float64).view_as(logps)
    batch = batch.but(old_logps=logps + shift, ref_logps=logps - shift)
    exact = values(batch.to(dtype=torch.float64), "eager", temperature)
    eager = values(batch, "eager", temperature)
    fused = values(batch.but(logits=as_view(batch.logits, layout)), backend, temperature)
    for key, truth in exact.items():
        # Where both are at the rounding of the result itself, luck decides: two units in the last place are allowed.
        # The loss, one sum of terms A * exp(logp - old), is rounded by as much as its largest logp is.
        size = batch.advantages.abs().max() * exact["logps"].abs().max() if key == "loss" else truth.abs().max()
        rounding = 2 * torch.finfo(dtype if key == "grad" else torch.float32).eps * size
        error, allowed = ((found[key] - truth).abs().max() for found in (fused, eager))
        assert error <= max(allowed, rounding), f"{key}: {error:.2e} > {allowed:.2e}"
