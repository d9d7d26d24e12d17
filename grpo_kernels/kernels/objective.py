"""Device functions for the objective of one token: the fp32 twin of ``grpo_kernels.objective``."""

import triton
import triton.language as tl

from .row_math import expm1

# As in ``grpo_kernels.objective``.
MAX_LOG_RATIO = tl.constexpr(80.0)


@triton.jit
def policy_loss(
    logp,
    ratio,
    advantage,
    low,
    high,
    delta,
    tau_pos,
    tau_neg,
    OBJECTIVE: tl.constexpr,
):
    """The policy term of a token and its derivative with respect to logp.

    OBJECTIVE is "clip" (grpo, bnpo, dr_grpo, dapo, luspo), "cispo" or "sapo". The ratio is clipped to
    [low, high]; cispo's bound is ``high``. Comparisons and GPU minima drop NaN, so a NaN ratio is put back in the end.
    """
    if OBJECTIVE == "clip":
        bounded = tl.minimum(ratio, delta) * advantage
        clipped = tl.minimum(tl.maximum(ratio, low), high) * advantage
        takes_bounded = bounded <= clipped
        moves = tl.where(takes_bounded, ratio <= delta, (ratio >= low) & (ratio <= high))
        loss = -tl.where(takes_bounded, bounded, clipped)
        derivative = tl.where(moves, -ratio * advantage, 0.0)
    elif OBJECTIVE == "cispo":
        derivative = -tl.minimum(ratio, high) * advantage
        loss = derivative * logp
    else:
        tau = tl.where(advantage > 0.0, tau_pos, tau_neg)
        gate = 1.0 / (1.0 + tl.exp(-tau * (ratio - 1.0)))
        loss = -4.0 / tau * gate * advantage
        derivative = -4.0 * gate * (1.0 - gate) * ratio * advantage
    return tl.where(ratio == ratio, loss, ratio), tl.where(ratio == ratio, derivative, ratio)


@triton.jit
def kl_loss(logp, ref_logp, ratio, KL: tl.constexpr, BIAS_CORRECTED: tl.constexpr):
    """The KL estimate of a token ("k1", "k2" or "k3") and its derivative with respect to logp."""
    d = ref_logp - logp
    if KL == "k1":
        kl = -d
        slope = tl.where(d == d, 1.0, d)
    elif KL == "k2":
        kl = 0.5 * d * d
        slope = -d
    else:
        e = expm1(d)
        kl = tl.where(d == float("inf"), float("inf"), e - d)
        slope = -e
    if BIAS_CORRECTED:
        slope = ratio * (slope + kl)
        kl = ratio * kl
    return kl, slope


@triton.jit
def token_objective(
    logp,
    old_logp,
    ref_logp,
    advantage,
    token_weight,
    beta,
    low,
    high,
    delta,
    tau_pos,
    tau_neg,
    OBJECTIVE: tl.constexpr,
    KL: tl.constexpr,
    BIAS_CORRECTED: tl.constexpr,
    HAS_OLD: tl.constexpr,
):
    """``(loss, derivative, kl, ratio)`` of a token. KL is "none" without a reference."""
    impossible = logp == float("-inf")
    if HAS_OLD:
        log_ratio = logp - old_logp
        log_ratio = tl.where(log_ratio > MAX_LOG_RATIO, MAX_LOG_RATIO, log_ratio)
        ratio = tl.where(impossible, 0.0, tl.exp(log_ratio))
    else:
        # Without old log-probabilities the ratio is 1 in value and carries the gradient.
        ratio = 1.0 + 0.0 * advantage
    loss, derivative = policy_loss(logp, ratio, advantage, low, high, delta, tau_pos, tau_neg, OBJECTIVE)
    loss *= token_weight
    derivative *= token_weight
    kl = 0.0 * advantage
    if KL != "none":
        kl, slope = kl_loss(logp, ref_logp, ratio, KL, BIAS_CORRECTED)
        loss += tl.where(beta == 0.0, 0.0, beta * kl)
        derivative += tl.where(beta == 0.0, 0.0, beta * slope)
    return loss, tl.where(impossible, 0.0, derivative), kl, ratio
