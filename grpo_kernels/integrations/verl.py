"""Functions with the signatures of verl's log-probability helpers; verl itself is not imported.

Each stands in for the one of its name: ``logprobs_from_logits`` and the entropies for those of
``verl.utils.torch_functional``, ``linear_cross_entropy`` for ``verl.utils.kernel.linear_cross_entropy``,
``FusedLinearForPPO`` for ``verl.utils.experimental.torch_functional``:

    import verl.utils.torch_functional as verl_F
    from grpo_kernels.integrations import verl as fused

    verl_F.logprobs_from_logits = fused.logprobs_from_logits  # before verl's workers import the name
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..linear_losses import linear_token_logps
from ..losses import token_logps
from ..memory import check_not_overwritten

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

REDUCTIONS = ("none", "sum", "mean")


def logprobs_from_logits(logits: Tensor, labels: Tensor, inplace_backward: bool = True) -> Tensor:
    """Log-probabilities of the labels.

    Args:
        logits: [N, V] or [B, T, V], float32, bfloat16, float16 or float64.
        labels: [N] or [B, T], int64 or int32, within the vocabulary.
        inplace_backward: backward writes the gradient over the logits; using them after that raises an error. False
            copies the logits if they need a gradient, which takes the memory that their gradient takes otherwise.

    Returns:
        [N] or [B, T], float32 (float64 for float64 logits), where verl's own may return the dtype of the logits.

    Raises:
        ValueError: the logits have another shape, or labels are outside the vocabulary.
    """
    _check_shape(logits)
    logps = token_logps(logits if inplace_backward else _own_copy(logits), labels)
    assert isinstance(logps, Tensor)
    return logps


def entropy_from_logits(logits: Tensor) -> Tensor:
    """Entropies in nats, [N] or [B, T], of logits [N, V] or [B, T, V]; float32.

    The logits may be used again: they are copied if they need a gradient.
    """
    _check_shape(logits)
    labels = torch.zeros(logits.shape[:-1], dtype=torch.int64, device=logits.device)
    _, entropy = token_logps(_own_copy(logits), labels, return_entropy=True)
    return entropy


def entropy_from_logits_with_chunking(logits: Tensor, chunk_size: int = 2048) -> Tensor:
    """``entropy_from_logits``, which needs no chunks: nothing of the size of the logits is computed."""
    return entropy_from_logits(logits)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    temperature: float = 1.0,
    reduction: str = "none",
    dist_process_group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of ``hidden @ weight.T / temperature``, which is never held whole.

    Args:
        hidden: [..., D]; weight: [V, D], of the same dtype, or this rank's consecutive rows of it.
        labels: [...], within the whole vocabulary.
        reduction: of the log-probabilities: "none", "sum" or "mean"; entropies stay per token.
        dist_process_group: the processes that hold the vocabulary together.

    Returns:
        ``(logprobs [N], entropy [N])`` with the leading dimensions flattened, as verl's; float32. Differentiable.

    Raises:
        ValueError: an unknown reduction.
    """
    if reduction.lower() not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; allowed: {', '.join(REDUCTIONS)}")
    logps, entropy = linear_token_logps(
        hidden.reshape(-1, hidden.shape[-1]),
        weight,
        labels.reshape(-1),
        temperature,
        return_entropy=True,
        process_group=dist_process_group,
    )
    if reduction.lower() == "sum":
        logps = logps.sum()
    elif reduction.lower() == "mean":
        logps = logps.mean()
    return logps, entropy


class FusedLinearForPPO(nn.Module):
    """verl's module of that name: log-probabilities and entropies [B, T] (or [N]) from hidden states.

    Args:
        chunk_size: tokens whose logits are held at a time.
    """

    def __init__(self, chunk_size: int = 512) -> None:
        super().__init__()
        self.chunk_size = chunk_size

    def forward(
        self, hidden_states: Tensor, vocab_weights: Tensor, input_ids: Tensor, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        bytes_per_number = max(4, hidden_states.element_size())
        logps, entropy = linear_token_logps(
            hidden_states,
            vocab_weights,
            input_ids,
            temperature,
            return_entropy=True,
            chunk_bytes=self.chunk_size * vocab_weights.shape[0] * bytes_per_number,
        )
        return logps, entropy


def _check_shape(logits: Tensor) -> None:
    if logits.dim() not in (2, 3):
        raise ValueError(f"logits have shape {list(logits.shape)}; allowed: [N, V], [B, T, V]")


def _own_copy(logits: Tensor) -> Tensor:
    check_not_overwritten(logits)
    return logits.clone() if logits.requires_grad and torch.is_grad_enabled() else logits
