"""Masks that ``token_weights`` of ``grpo_loss`` can be made of. They act on the policy term, not on KL or entropy."""

from __future__ import annotations

import torch
from torch import Tensor


def top_entropy_mask(entropy: Tensor, mask: Tensor, quantile: float) -> Tensor:
    """1 for the tokens whose entropy is in the top ``quantile`` of all unmasked tokens (2506.01939), else 0.

    Args:
        entropy: [B, T]; mask: [B, T], bool or 0/1.
        quantile: the share of tokens to keep, above 0 and at most 1.

    Returns:
        [B, T] in the dtype of ``entropy``; 0 where the mask is 0.

    Raises:
        ValueError: ``quantile`` is outside (0, 1].
    """
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile is {quantile!r}; allowed: above 0 and at most 1")
    kept = mask.bool()
    if quantile == 1.0 or not bool(kept.any()):
        return kept.to(entropy.dtype)
    # In float32, as TRL does. Not torch.quantile, which refuses more than 2^24 elements.
    values = entropy[kept].float().sort().values
    position = (1.0 - quantile) * (values.numel() - 1)
    low = int(position)
    threshold = torch.lerp(values[low], values[min(low + 1, values.numel() - 1)], position - low)
    return ((entropy >= threshold) & kept).to(entropy.dtype)


def off_policy_sequence_mask(
    logps: Tensor, sampling_logps: Tensor, advantages: Tensor, mask: Tensor, threshold: float
) -> Tensor:
    """0 for sequences of negative advantage that the policy has moved away from, else 1 (DeepSeek-V3.2).

    A sequence moved away if the mean of ``sampling_logps - logps`` over its unmasked tokens exceeds ``threshold``.

    Args:
        logps, sampling_logps: [B, T]; advantages: [B], [B, 1] or [B, T]; mask: [B, T], bool or 0/1.

    Returns:
        [B, T] if advantages are per token, else [B, 1], in the dtype of ``logps``.
    """
    weights = mask.to(logps.dtype)
    difference = (sampling_logps - logps).masked_fill(weights == 0, 0.0)
    divergence = difference.sum(-1, keepdim=True) / weights.sum(-1, keepdim=True).clamp(min=1.0)
    advantages = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    return ((advantages >= 0) | (divergence <= threshold)).to(logps.dtype)
