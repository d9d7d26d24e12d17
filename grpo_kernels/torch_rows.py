"""The row operations in plain torch: for CPUs and any device without Triton.

Rows are handled in blocks of bounded size, in float32 (float64 for float64 logits), so that no temporary of the
size of the logits exists. One row is one token's logits. Statistics of a row, with ``a_j = (x_j - peak) / T``:

* ``peak``: ``max x``, in the unit of the logits (0 if all are -inf);
* ``total``: ``sum_j exp(a_j)`` (1 if all are -inf);
* ``miss``: ``1 - p_y`` of the target y, from the sum without the target, so that it keeps its digits when ``p_y`` is
  almost 1; 0 where the target's logit is -inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from .config import GRPOLossConfig
from .objective import per_token_derivative, per_token_loss

BLOCK_ELEMENTS = 1 << 20


class RowStats(NamedTuple):
    """Statistics of every row, [B, T] each; 0 for inactive rows."""

    logps: Tensor
    entropy: Tensor
    peak: Tensor
    total: Tensor
    miss: Tensor


class RowLoss(NamedTuple):
    """Weighted loss, its derivative with respect to ``logps``, KL and ratio of every row, [B, T] each."""

    loss: Tensor
    derivative: Tensor
    kl: Tensor
    ratio: Tensor


def compute_dtype(logits: Tensor) -> torch.dtype:
    """float64 for float64 logits, float32 for all others."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def token_stats(logits: Tensor, ids: Tensor, active: Tensor, temperature: float) -> RowStats:
    """Log-probability, entropy and softmax statistics of every active row.

    Args:
        logits: [B, T, V], any floating dtype, any strides.
        ids: [B, T], int64; active: [B, T], bool.
    """
    dtype = compute_dtype(logits)
    stats = RowStats(*(torch.zeros(ids.shape, dtype=dtype, device=ids.device) for _ in RowStats._fields))
    for rows in _blocks(active, logits.shape[-1]):
        targets = ids.flatten()[rows].unsqueeze(-1)
        shifted, peak = _shifted_rows(logits, rows, temperature)
        block = _block_stats(shifted, targets, peak.squeeze(-1))
        for field, values in zip(stats, block, strict=True):
            field.view(-1)[rows] = values
    return stats


def grpo_rows(
    logits: Tensor,
    ids: Tensor,
    active: Tensor,
    advantages: Tensor,
    old_logps: Tensor | None,
    ref_logps: Tensor | None,
    token_weights: Tensor | None,
    weights: Tensor,
    entropy_weights: Tensor | None,
    config: GRPOLossConfig,
    overwrite_logits: bool = False,
) -> tuple[RowStats, RowLoss]:
    """Statistics and the weighted loss of every row, for token-level objectives.

    Args:
        logits: [B, T, V]; with ``overwrite_logits`` they become the gradient of the sum of the losses.
        weights, entropy_weights: [B, T], the w_i and e_i of ``objective``; the others as ``per_token_loss`` takes them,
            all [B, T].
    """
    stats = token_stats(logits, ids, active, config.temperature)
    token_loss = per_token_loss(
        stats.logps, advantages, active.to(weights.dtype), config, old_logps, ref_logps, token_weights
    )
    derivative = per_token_derivative(stats.logps, token_loss.ratio, advantages, config, ref_logps, token_weights)
    loss = weights * token_loss.loss
    if entropy_weights is not None:
        loss = loss - entropy_weights * stats.entropy
    kl = torch.zeros_like(loss) if token_loss.kl is None else token_loss.kl
    inactive = ~active
    row_loss = RowLoss(
        loss.masked_fill(inactive, 0.0),
        (weights * derivative).masked_fill(inactive, 0.0),
        kl.masked_fill(inactive, 0.0),
        token_loss.ratio.masked_fill(inactive, 1.0),
    )
    if overwrite_logits:
        grad_entropy = None if entropy_weights is None else -entropy_weights
        row_grad(
            logits,
            ids,
            stats.peak,
            stats.total,
            stats.miss,
            stats.entropy,
            row_loss.derivative,
            grad_entropy,
            config.temperature,
            out=logits,
        )
    return stats, row_loss


def row_grad(
    logits: Tensor,
    ids: Tensor,
    peak: Tensor,
    total: Tensor,
    miss: Tensor,
    entropy: Tensor,
    grad_logps: Tensor,
    grad_entropy: Tensor | None,
    temperature: float,
    out: Tensor,
) -> None:
    """Write d(loss)/d(logits) into ``out``, which may be ``logits`` itself.

    ``dx_j = [ g (1[j = y] - p_j) - h p_j (log p_j + H) ] / T`` with g, h the gradients of the row's log-probability
    and entropy. Rows where both are 0 are not read; their gradient is 0, as it is for logits of -inf.
    """
    needed = grad_logps != 0
    if grad_entropy is not None:
        needed = needed | (grad_entropy != 0)

    def of_rows(values: Tensor, rows: Tensor) -> Tensor:
        return values.flatten()[rows].unsqueeze(-1)

    for rows in _blocks(needed, logits.shape[-1]):
        shifted, _ = _shifted_rows(logits, rows, temperature, of_rows(peak, rows))
        row_total = of_rows(total, rows)
        row_grad_logp = of_rows(grad_logps, rows)
        probs = shifted.exp().div_(row_total)
        grad = probs * -row_grad_logp
        grad.scatter_(-1, of_rows(ids, rows), row_grad_logp * of_rows(miss, rows))
        if grad_entropy is not None:
            surprise = shifted.add_(of_rows(entropy, rows) - row_total.log()).masked_fill_(probs == 0, 0.0)
            grad.sub_(probs.mul_(surprise).mul_(of_rows(grad_entropy, rows)))
        _put(out, rows, grad.mul_(1.0 / temperature))
    _zero(out, (~needed).flatten().nonzero().squeeze(-1))


def scale_rows(grad: Tensor, scale: Tensor) -> None:
    """Multiply every row of ``grad`` [B, T, V] by ``scale`` [B, T], in place."""
    if bool((scale != 1).any()):
        grad.mul_(scale.unsqueeze(-1))


def _blocks(wanted: Tensor, vocabulary: int) -> Iterator[Tensor]:
    """Flat indices of the wanted rows, in blocks of at most ``BLOCK_ELEMENTS`` logits (at least one row)."""
    rows = wanted.flatten().nonzero().squeeze(-1)
    yield from (rows.split(max(1, BLOCK_ELEMENTS // vocabulary)) if rows.numel() else ())


def _shifted_rows(
    logits: Tensor, rows: Tensor, temperature: float, peak: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``(x - max x) / T`` of the rows, [n, V], a fresh tensor in the compute dtype, and ``max x``, [n, 1]."""
    values = _take(logits, rows).to(compute_dtype(logits))
    if peak is None:
        peak = values.amax(-1, keepdim=True)
        peak = peak.masked_fill(peak == -math.inf, 0.0)
    values.sub_(peak)
    if temperature != 1.0:
        values.div_(temperature)
    return values, peak


def _block_stats(shifted: Tensor, targets: Tensor, peak: Tensor) -> RowStats:
    """Statistics of a block of shifted logits [n, V] with targets [n, 1]: [n] each."""
    exps = shifted.exp()
    weighted = torch.linalg.vecdot(exps, shifted)
    if not bool(torch.isfinite(weighted).all()):
        # exp(-inf) * -inf is 0 here, not NaN.
        weighted = torch.linalg.vecdot(exps, shifted.masked_fill(shifted == -math.inf, 0.0))
    rest = exps.scatter_(-1, targets, 0.0).sum(-1)
    target = shifted.gather(-1, targets).squeeze(-1)
    impossible = target == -math.inf
    total = rest + target.exp()
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    log_total = torch.where(target == 0, torch.log1p(rest), torch.log(total))
    return RowStats(
        logps=(target - log_total).masked_fill(impossible, -math.inf),
        entropy=(log_total - weighted / total).masked_fill(empty, 0.0),
        peak=peak,
        total=total,
        miss=(rest / total).masked_fill(impossible, 0.0),
    )


def _take(logits: Tensor, rows: Tensor) -> Tensor:
    if logits.is_contiguous():
        return logits.view(-1, logits.shape[-1]).index_select(0, rows)
    length = logits.shape[1]
    return logits[rows // length, rows % length]


def _put(out: Tensor, rows: Tensor, values: Tensor) -> None:
    values = values.to(out.dtype)
    if out.is_contiguous():
        out.view(-1, out.shape[-1]).index_copy_(0, rows, values)
    else:
        length = out.shape[1]
        out[rows // length, rows % length] = values


def _zero(out: Tensor, rows: Tensor) -> None:
    if not rows.numel():
        return
    if out.is_contiguous():
        out.view(-1, out.shape[-1]).index_fill_(0, rows, 0.0)
    else:
        length = out.shape[1]
        out[rows // length, rows % length] = 0.0
