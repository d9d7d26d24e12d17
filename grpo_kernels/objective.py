"""The per-token loss, its derivative and the row weights: the mathematics, stated once, on [B, T] tensors.

Every function is elementwise or a reduction over T; none sees a vocabulary. ``logps`` are log-probabilities of the
sampled tokens at the sampling temperature, ``mask`` is 1 for tokens that count.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .config import GRPOLossConfig

# Ratios end at exp(80), which float32 holds: an infinite one would turn a weight of 0 into NaN.
MAX_LOG_RATIO = 80.0
VESPO_MAX_LOG_RATIO = 20.0
VESPO_MIN_LOG_WEIGHT = math.log(1e-8)


class TokenLoss(NamedTuple):
    """Per-token results. ``kl`` is None without a reference, ``phi`` ([B, 1]) is vespo's sequence weight."""

    loss: Tensor
    ratio: Tensor
    kl: Tensor | None
    phi: Tensor | None


def row_weights(config: GRPOLossConfig, mask: Tensor, num_items_in_batch: Tensor | float | None) -> Tensor:
    """The weight w_i of every token in the loss, so that ``loss = sum_i w_i l_i``.

    Args:
        mask: [B, T], floating.
        num_items_in_batch: tokens (dapo, cispo, vespo only); None means ``mask.sum()``.

    Returns:
        [B, T] in the dtype of ``mask``; 0 where the mask is 0.
    """
    sequences = mask.shape[0]
    if config.loss_type in ("grpo", "sapo"):
        return mask / (mask.sum(-1, keepdim=True).clamp(min=1.0) * max(sequences, 1))
    if config.loss_type == "luspo":
        return mask / max(sequences, 1)
    if config.loss_type == "dr_grpo":
        assert config.max_completion_length is not None
        return mask / (max(sequences, 1) * config.max_completion_length)
    if config.loss_type == "bnpo" or num_items_in_batch is None:
        return mask / mask.sum().clamp(min=1.0)
    return mask / num_items_in_batch


def entropy_weights(config: GRPOLossConfig, mask: Tensor) -> Tensor:
    """The weight e_i of every token's entropy in the bonus ``sum_i e_i H_i``: [B, T]."""
    return mask * (config.entropy_coef / mask.sum().clamp(min=1.0))


def total_loss(
    losses: Tensor,
    entropy: Tensor,
    mask: Tensor,
    config: GRPOLossConfig,
    num_items_in_batch: Tensor | float | None,
) -> Tensor:
    """``sum_i w_i l_i - sum_i e_i H_i`` of [B, T] losses and entropies: 0-d."""
    # Filling rather than multiplying keeps an infinite loss at a masked token out of the sum.
    loss = (row_weights(config, mask, num_items_in_batch) * losses).masked_fill(mask == 0, 0.0).sum()
    if config.entropy_coef != 0.0:
        loss = loss - (entropy_weights(config, mask) * entropy).masked_fill(mask == 0, 0.0).sum()
    return loss


def log_ratio(logps: Tensor, old_logps: Tensor | None) -> Tensor:
    """``logp - old``. Without old log-probabilities it is 0 in value and carries the gradient of ``logps``.

    A token of probability 0 (``logp = -inf``) has no gradient to carry: it gets a constant.
    """
    impossible = logps == -math.inf
    safe = logps.masked_fill(impossible, 0.0)
    if old_logps is None:
        return safe - safe.detach()
    difference = safe - old_logps
    at_most = MAX_LOG_RATIO + (safe - safe.detach())
    return torch.where(difference > MAX_LOG_RATIO, at_most, difference).masked_fill(impossible, -math.inf)


def masked_sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the masked tokens of each sequence: [B, 1]. An empty sequence gives 0."""
    kept = values.masked_fill(mask == 0, 0.0)
    return kept.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)


def importance_ratio(log_ratios: Tensor, mask: Tensor, config: GRPOLossConfig) -> Tensor:
    """r_i ([B, T]), or r_k ([B, 1]) at sequence level (GSPO, 2507.18071, eq. 7)."""
    if config.importance_sampling_level == "sequence":
        log_ratios = masked_sequence_mean(log_ratios, mask)
    return torch.exp(log_ratios)


def kl_estimate(logps: Tensor, ref_logps: Tensor, estimator: str) -> Tensor:
    """The estimate of KL(policy || reference) per token: k1, k2 or k3."""
    impossible = logps == -math.inf
    difference = ref_logps - logps.masked_fill(impossible, 0.0)
    difference = difference.masked_fill(impossible, math.inf)
    if estimator == "k1":
        return -difference
    if estimator == "k2":
        return 0.5 * difference * difference
    return (torch.expm1(difference) - difference).masked_fill(difference == math.inf, math.inf)


def vespo_weight(
    log_ratios: Tensor, advantages: Tensor, token_weights: Tensor | None, mask: Tensor, config: GRPOLossConfig
) -> Tensor:
    """phi_k = exp(lambda + kappa * log w_k - lambda * w_k), the detached gamma weight of each sequence.

    ``log w_k`` is the clamped sum of the sequence's clamped log-ratios and log token weights.

    Returns:
        [B, 1], or [B, T] where advantages differ within a sequence.
    """
    bounded = log_ratios.detach().clamp(-VESPO_MAX_LOG_RATIO, VESPO_MAX_LOG_RATIO)
    log_w = (bounded * mask).sum(-1, keepdim=True)
    if token_weights is not None:
        log_correction = token_weights.log().clamp(VESPO_MIN_LOG_WEIGHT, VESPO_MAX_LOG_RATIO)
        log_w = log_w + log_correction.sum(-1, keepdim=True)
    log_w = log_w.clamp(VESPO_MIN_LOG_WEIGHT, VESPO_MAX_LOG_RATIO)
    positive = advantages >= 0
    kappa = _choose(positive, config.vespo_k_pos, config.vespo_k_neg, log_w)
    lam = _choose(positive, config.vespo_lambda_pos, config.vespo_lambda_neg, log_w)
    return torch.exp(lam + kappa * log_w - lam * torch.exp(log_w))


def per_token_loss(
    logps: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: GRPOLossConfig,
    old_logps: Tensor | None = None,
    ref_logps: Tensor | None = None,
    token_weights: Tensor | None = None,
) -> TokenLoss:
    """l_i for every token, differentiable with respect to ``logps``.

    Args:
        logps, old_logps, ref_logps: [B, T].
        advantages: [B, 1] or [B, T].
        token_weights: [B, T] or [B, 1]; they multiply the policy term (for vespo they enter its weight instead).
        mask: [B, T], floating; only the sequence-level quantities use it.
    """
    # A token of probability 0 has no gradient to carry.
    logps = torch.where(logps == -math.inf, logps.detach(), logps)
    log_ratios = log_ratio(logps, old_logps)
    ratio = importance_ratio(log_ratios, mask, config)
    phi = None
    if config.is_clipped:
        bounded = ratio if config.delta is None else ratio.clamp(max=config.delta)
        clipped = ratio.clamp(1.0 - config.epsilon, 1.0 + config.upper_epsilon)
        policy = -torch.min(bounded * advantages, clipped * advantages)
    elif config.loss_type == "cispo":
        policy = -ratio.clamp(max=config.upper_epsilon).detach() * advantages * logps
    elif config.loss_type == "sapo":
        tau = _choose(advantages > 0, config.sapo_temperature_pos, config.sapo_temperature_neg, ratio)
        policy = -(4.0 / tau) * torch.sigmoid(tau * (ratio - 1.0)) * advantages
    else:
        phi = vespo_weight(log_ratios, advantages, token_weights, mask, config)
        policy = -phi * advantages * logps
    if token_weights is not None and config.loss_type != "vespo":
        policy = policy * token_weights
    loss = policy.expand_as(logps)

    kl = None
    if ref_logps is not None:
        kl = kl_estimate(logps, ref_logps, config.kl_estimator)
        if config.use_bias_correction_kl:
            kl = kl * ratio
        if config.beta != 0.0:
            loss = loss + config.beta * kl
    return TokenLoss(loss, ratio, kl, phi)


def per_token_derivative(
    logps: Tensor,
    ratio: Tensor,
    advantages: Tensor,
    config: GRPOLossConfig,
    ref_logps: Tensor | None = None,
    token_weights: Tensor | None = None,
) -> Tensor:
    """c_i = dl_i / dlogp_i in closed form, for objectives whose coefficient depends on the token alone.

    Args:
        logps, ref_logps: [B, T]; ratio: [B, T], the token-level ratio; advantages, token_weights: [B, 1] or [B, T].

    Returns:
        [B, T]; 0 where ``logp`` is -inf.
    """
    assert not config.needs_whole_sequence
    if config.is_clipped:
        low, high = 1.0 - config.epsilon, 1.0 + config.upper_epsilon
        limit = math.inf if config.delta is None else config.delta
        takes_bounded = ratio.clamp(max=limit) * advantages <= ratio.clamp(low, high) * advantages
        moves = torch.where(takes_bounded, ratio <= limit, (ratio >= low) & (ratio <= high))
        derivative = (-ratio * advantages).masked_fill(~(moves | ratio.isnan()), 0.0)
    elif config.loss_type == "cispo":
        derivative = -ratio.clamp(max=config.upper_epsilon) * advantages
    else:
        tau = _choose(advantages > 0, config.sapo_temperature_pos, config.sapo_temperature_neg, ratio)
        gate = torch.sigmoid(tau * (ratio - 1.0))
        derivative = -4.0 * gate * (1.0 - gate) * ratio * advantages
    if token_weights is not None:
        derivative = derivative * token_weights
    if ref_logps is not None and config.beta != 0.0:
        derivative = derivative + config.beta * _kl_derivative(logps, ref_logps, ratio, config)
    return derivative.masked_fill(logps == -math.inf, 0.0)


def _kl_derivative(logps: Tensor, ref_logps: Tensor, ratio: Tensor, config: GRPOLossConfig) -> Tensor:
    difference = ref_logps - logps
    if config.kl_estimator == "k1":
        slope = torch.ones_like(difference)
    elif config.kl_estimator == "k2":
        slope = -difference
    else:
        slope = -torch.expm1(difference)
    if config.use_bias_correction_kl:
        return ratio * (slope + kl_estimate(logps, ref_logps, config.kl_estimator))
    return slope


def _choose(condition: Tensor, if_true: float, if_false: float, like: Tensor) -> Tensor:
    """``torch.where`` of two Python numbers at the full precision of ``like``."""
    return torch.where(condition, like.new_full((), if_true), like.new_full((), if_false))
