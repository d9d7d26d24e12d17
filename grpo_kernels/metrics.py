"""Means over the tokens of a batch that TRL logs with the loss, under TRL's names."""

from __future__ import annotations

from torch import Tensor

from .config import GRPOLossConfig
from .objective import masked_sequence_mean


def loss_metrics(
    loss: Tensor,
    ratio: Tensor,
    entropy: Tensor,
    kl: Tensor | None,
    phi: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    config: GRPOLossConfig,
) -> dict[str, Tensor]:
    """Metrics as 0-d tensors, without a synchronisation.

    Args:
        ratio: [B, T], or [B, 1] at sequence level.
        advantages: [B, 1] or [B, T]; mask: [B, T], floating.
    """

    def mean(values: Tensor) -> Tensor:
        if values.shape[-1] == 1 and mask.shape[-1] != 1:
            return values.sum() / max(values.numel(), 1)  # one value per sequence
        return values.masked_fill(mask == 0, 0.0).sum() / mask.sum().clamp(min=1.0)

    metrics = {"entropy": mean(entropy)}
    if kl is not None:
        metrics["kl"] = mean(kl)
    if config.entropy_coef != 0.0:
        metrics["policy_loss"] = loss + config.entropy_coef * metrics["entropy"]
    if config.is_clipped:
        low = ((ratio < 1.0 - config.epsilon) & (advantages < 0)).to(mask.dtype)
        high = ((ratio > 1.0 + config.upper_epsilon) & (advantages > 0)).to(mask.dtype)
        metrics["clip_ratio/low_mean"] = mean(low)
        metrics["clip_ratio/high_mean"] = mean(high)
        metrics["clip_ratio/region_mean"] = mean(low + high)
        if mask.numel():
            per_sequence = (lambda x: x) if low.shape[-1] == 1 else (lambda x: masked_sequence_mean(x, mask))
            metrics["clip_ratio/low_min"] = per_sequence(low).min()
            metrics["clip_ratio/high_max"] = per_sequence(high).max()
    elif config.loss_type == "cispo":
        above = ((ratio > config.upper_epsilon) & (advantages > 0)).to(mask.dtype)
        metrics["cispo_clip_ratio"] = mean(above)
    elif phi is not None:
        metrics["vespo/phi_seq_mean"] = mean(phi)
    return metrics
