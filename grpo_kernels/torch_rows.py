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
from collections.abc import Iterator, Sequence
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


def token_stats(logits: Tensor, ids: Tensor, active: Tensor, temperature: float | Tensor) -> RowStats:
    """Log-probability, entropy and softmax statistics of every active row.

    Args:
        logits: [B, T, V], any floating dtype, any strides.
        ids: [B, T], int64; active: [B, T], bool.
        temperature: one for all rows, or [B, T] in the compute dtype: one a row.
    """
    stats = _empty(RowStats, ids.shape, logits)
    for rows in _blocks(active, logits.shape[-1]):
        shifted, peak = _shifted_rows(logits, rows, _row_temperature(temperature, rows))
        block, _ = _block_stats(shifted, _column(ids, rows), peak, torch.empty_like(shifted), keep_shifted=False)
        _store(stats, rows, block)
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
    temperatures: Tensor | None,
    config: GRPOLossConfig,
    overwrite_logits: bool = False,
) -> tuple[RowStats, RowLoss]:
    """Statistics and the weighted loss of every row, for token-level objectives.

    Args:
        logits: [B, T, V]; with ``overwrite_logits`` they become the gradient of the sum of the losses.
        weights, entropy_weights: [B, T], the w_i and e_i of ``objective``.
        temperatures: [B, T], one a row, instead of ``config.temperature``; the others as ``per_token_loss`` takes them,
            all [B, T].
    """
    vectors = (advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, temperatures)
    if not overwrite_logits:
        stats = token_stats(logits, ids, active, config.temperature if temperatures is None else temperatures)
        row_loss = row_objective(stats, vectors, config)
        defaults = (0.0, 0.0, 0.0, 1.0)
        return stats, RowLoss(*(v.masked_fill(~active, d) for v, d in zip(row_loss, defaults, strict=True)))

    stats, row_loss = _empty(RowStats, ids.shape, logits), _empty(RowLoss, ids.shape, logits)
    row_loss.ratio.fill_(1.0)
    for rows in _blocks(active, logits.shape[-1]):
        values = _take(logits, rows).to(compute_dtype(logits))
        scratch = torch.empty_like(values)
        block = _fused_block_(values, scratch, ids.flatten()[rows], [_at(v, rows) for v in vectors], config)
        _put(logits, rows, values)
        _store(stats, rows, block[0])
        _store(row_loss, rows, block[1])
    _zero(logits, ~active)
    return stats, row_loss


def fused_rows_(
    values: Tensor,
    ids: Tensor,
    advantages: Tensor,
    old_logps: Tensor | None,
    ref_logps: Tensor | None,
    token_weights: Tensor | None,
    weights: Tensor,
    entropy_weights: Tensor | None,
    temperatures: Tensor | None,
    config: GRPOLossConfig,
    softcap: float,
    logit_scale: float,
    out: Tensor | None,
) -> tuple[RowStats, RowLoss]:
    """``grpo_rows`` of logits [n, V], which are used up; vectors are [n].

    The gradient of the sum of the losses is written to ``out``, [n, V], which may be the logits themselves; None: none
    is wanted. They are raw logits, before ``softcap`` (0: none) and ``logit_scale``.
    """
    stats, row_loss = _empty(RowStats, ids.shape, values), _empty(RowLoss, ids.shape, values)
    vectors = (advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, temperatures)
    scratch = _scratch(values)
    for rows in _row_slices(values):
        block = values[rows].to(scratch.dtype)
        slope = apply_head_(block, softcap, logit_scale, out is not None)
        results = _fused_block_(block, scratch, ids[rows], [_at(v, rows) for v in vectors], config, out is not None)
        if out is not None:
            _write(out[rows], block if slope is None else block.mul_(slope))
        _store(stats, rows, results[0])
        _store(row_loss, rows, results[1])
    return stats, row_loss


def logp_rows_(
    values: Tensor,
    ids: Tensor,
    grad_logps: Tensor | None,
    grad_entropy: Tensor | None,
    temperature: float | Tensor,
    softcap: float,
    logit_scale: float,
    out: Tensor | None,
) -> RowStats:
    """Statistics of raw logits [n, V], which are used up; ``temperature`` is a number or [n].

    With ``grad_logps`` [n] (and ``grad_entropy`` [n]) the gradient of
    ``(grad_logps * logps + grad_entropy * entropy).sum()`` is written to ``out``, which may be the logits themselves.
    """
    stats = _empty(RowStats, ids.shape, values)
    scratch = _scratch(values)
    for rows in _row_slices(values):
        block, targets = values[rows].to(scratch.dtype), ids[rows].unsqueeze(-1)
        slope = apply_head_(block, softcap, logit_scale, out is not None)
        row_temperature = _row_temperature(temperature, rows)
        peak = _shift_(block, row_temperature)
        block_stats, exps = _block_stats(block, targets, peak, scratch, keep_shifted=grad_entropy is not None)
        _store(stats, rows, block_stats)
        if out is not None:
            assert grad_logps is not None
            grad_h = None if grad_entropy is None else grad_entropy[rows]
            _block_grad(exps, block, targets, block_stats, grad_logps[rows], grad_h, row_temperature, out=block)
            _write(out[rows], block if slope is None else block.mul_(slope))
    return stats


def stats_rows(
    values: Tensor, ids: Tensor, temperature: float | Tensor, softcap: float, logit_scale: float
) -> RowStats:
    """``logp_rows_`` without a gradient, of logits [n, V] that stay as they are."""
    stats = _empty(RowStats, ids.shape, values)
    for rows in _row_slices(values):
        block = values[rows].to(compute_dtype(values), copy=True)
        block_temperature = temperature[rows] if isinstance(temperature, Tensor) else temperature
        _store(stats, rows, logp_rows_(block, ids[rows], None, None, block_temperature, softcap, logit_scale, None))
    return stats


def grad_rows_(
    values: Tensor,
    ids: Tensor,
    stats: RowStats,
    grad_logps: Tensor,
    grad_entropy: Tensor | None,
    temperature: float | Tensor,
    softcap: float,
    logit_scale: float,
    out: Tensor,
) -> None:
    """The gradient that ``logp_rows_`` writes, from statistics [n] that may cover more columns than these [n, V].

    A target of -1 is none of these columns. The logits are used up.
    """
    scratch = _scratch(values)
    for rows in _row_slices(values):
        block, targets = values[rows].to(scratch.dtype), ids[rows].unsqueeze(-1)
        block_stats = RowStats(*(field[rows] for field in stats))
        row_temperature = _row_temperature(temperature, rows)
        slope = apply_head_(block, softcap, logit_scale, with_slope=True)
        _shift_(block, row_temperature, block_stats.peak.unsqueeze(-1))
        exps = torch.exp(block, out=scratch[: block.shape[0]])
        # -p in place of 1 - p at a column makes it one like the others.
        columns = targets.clamp(min=0)
        like_others = -exps.gather(-1, columns).squeeze(-1) / block_stats.total
        block_stats = block_stats._replace(miss=torch.where(ids[rows] < 0, like_others, block_stats.miss))
        grad_h = None if grad_entropy is None else grad_entropy[rows]
        _block_grad(exps, block, columns, block_stats, grad_logps[rows], grad_h, row_temperature, out=block)
        _write(out[rows], block if slope is None else block.mul_(slope))


def apply_head_(values: Tensor, softcap: float, logit_scale: float, with_slope: bool) -> Tensor | float | None:
    """Raw logits to ``softcap * tanh(logit_scale * x / softcap)`` in place; returns the derivative, None for 1."""
    if softcap == 0.0:
        if logit_scale == 1.0:
            return None
        values.mul_(logit_scale)
        return logit_scale
    values.mul_(logit_scale / softcap).tanh_()
    slope = values.square().neg_().add_(1.0).mul_(logit_scale) if with_slope else None
    values.mul_(softcap)
    return slope


def _fused_block_(
    values: Tensor,
    scratch: Tensor,
    ids: Tensor,
    vectors: Sequence[Tensor | None],
    config: GRPOLossConfig,
    with_grad: bool = True,
) -> tuple[RowStats, RowLoss]:
    temperatures = vectors[6]
    temperature = config.temperature if temperatures is None else temperatures.unsqueeze(-1)
    peak = _shift_(values, temperature)
    targets = ids.unsqueeze(-1)
    stats, exps = _block_stats(values, targets, peak, scratch, keep_shifted=vectors[5] is not None)
    row_loss = row_objective(stats, vectors, config)
    if with_grad:
        entropy_weights = vectors[5]
        grad_entropy = None if entropy_weights is None else -entropy_weights
        _block_grad(exps, values, targets, stats, row_loss.derivative, grad_entropy, temperature, out=values)
    return stats, row_loss


def row_objective(stats: RowStats, vectors: Sequence[Tensor | None], config: GRPOLossConfig) -> RowLoss:
    """Loss, derivative, KL and ratio from the statistics and ``grpo_rows``' vectors, all of one shape."""
    advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, _ = vectors
    assert advantages is not None and weights is not None
    result = per_token_loss(
        stats.logps, advantages, torch.ones_like(weights), config, old_logps, ref_logps, token_weights
    )
    derivative = per_token_derivative(stats.logps, result.ratio, advantages, config, ref_logps, token_weights)
    loss = weights * result.loss
    if entropy_weights is not None:
        loss = loss - entropy_weights * stats.entropy
    kl = torch.zeros_like(loss) if result.kl is None else result.kl
    return RowLoss(loss, weights * derivative, kl, result.ratio)


def row_grad(
    logits: Tensor,
    ids: Tensor,
    peak: Tensor,
    total: Tensor,
    miss: Tensor,
    entropy: Tensor,
    grad_logps: Tensor,
    grad_entropy: Tensor | None,
    temperature: float | Tensor,
    out: Tensor,
) -> None:
    """Write d(loss)/d(logits) into ``out``, which may be ``logits`` itself; ``temperature`` is a number or [B, T].

    ``dx_j = [ g (1[j = y] - p_j) - h p_j (log p_j + H) ] / T`` with g, h the gradients of the row's log-probability
    and entropy. Rows where both are 0 are not read; their gradient is 0, as it is for logits of -inf.
    """
    needed = grad_logps != 0
    if grad_entropy is not None:
        needed = needed | (grad_entropy != 0)
    for rows in _blocks(needed, logits.shape[-1]):
        row_temperature = _row_temperature(temperature, rows)
        shifted, _ = _shifted_rows(logits, rows, row_temperature, _column(peak, rows))
        grad = shifted.exp()
        stats = RowStats(*(values.flatten()[rows] for values in (total, entropy, peak, total, miss)))
        _block_grad(
            grad,
            shifted,
            _column(ids, rows),
            stats,
            grad_logps.flatten()[rows],
            _at(grad_entropy, rows),
            row_temperature,
            grad,
        )
        _put(out, rows, grad)
    _zero(out, ~needed)


def scale_rows(grad: Tensor, scale: Tensor) -> None:
    """Multiply every row of ``grad`` [B, T, V] by ``scale`` [B, T], in place."""
    for rows in _blocks(scale != 1, grad.shape[-1]):
        values = _take(grad, rows).to(compute_dtype(grad))
        _put(grad, rows, values.mul_(_column(scale, rows)))


def _blocks(wanted: Tensor, vocabulary: int) -> Iterator[Tensor]:
    """Flat indices of the wanted rows, in blocks of at most ``BLOCK_ELEMENTS`` logits (at least one row)."""
    rows = wanted.flatten().nonzero().squeeze(-1)
    yield from (rows.split(max(1, BLOCK_ELEMENTS // vocabulary)) if rows.numel() else ())


def _row_slices(values: Tensor) -> Iterator[slice]:
    """The rows of [n, V] in blocks of at most ``BLOCK_ELEMENTS`` (at least one row)."""
    size = max(1, BLOCK_ELEMENTS // values.shape[-1])
    for start in range(0, values.shape[0], size):
        yield slice(start, start + size)


def _scratch(values: Tensor) -> Tensor:
    """Memory for a block of ``_row_slices``, to be used for one after the other: fresh memory costs page faults."""
    return torch.empty_like(values[next(_row_slices(values), slice(0))], dtype=compute_dtype(values))


def _write(out: Tensor, block: Tensor) -> None:
    """Copy a block, unless it is already there."""
    if out.data_ptr() != block.data_ptr():
        out.copy_(block)


def _at(values: Tensor | None, rows: Tensor | slice) -> Tensor | None:
    """The values of the rows, [n]."""
    return None if values is None else values.flatten()[rows]


def _row_temperature(temperature: float | Tensor, rows: Tensor | slice) -> float | Tensor:
    """The temperature of the rows: the number, or [n, 1]."""
    return temperature.flatten()[rows].unsqueeze(-1) if isinstance(temperature, Tensor) else temperature


def _column(values: Tensor, rows: Tensor) -> Tensor:
    """The values of the rows, [n, 1]."""
    return values.flatten()[rows].unsqueeze(-1)


def _empty(kind, shape: torch.Size, logits: Tensor):
    """A ``RowStats`` or ``RowLoss`` of zeros."""
    return kind(*(torch.zeros(shape, dtype=compute_dtype(logits), device=logits.device) for _ in kind._fields))


def _store(fields: tuple[Tensor, ...], rows: Tensor | slice, block: tuple[Tensor, ...]) -> None:
    for field, values in zip(fields, block, strict=True):
        field.view(-1)[rows] = values


def _shifted_rows(
    logits: Tensor, rows: Tensor, temperature: float | Tensor, peak: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """``(x - peak) / T`` of the rows, [n, V], a fresh tensor in the compute dtype, and the peak, [n, 1]."""
    values = _take(logits, rows).to(compute_dtype(logits))
    return values, _shift_(values, temperature, peak)


def _shift_(values: Tensor, temperature: float | Tensor, peak: Tensor | None = None) -> Tensor:
    """Turn logits [n, V] into ``(x - peak) / T`` in place; returns the peak, [n, 1]."""
    if peak is None:
        peak = values.amax(-1, keepdim=True)
        peak = peak.masked_fill(peak == -math.inf, 0.0)
    values.sub_(peak)
    if isinstance(temperature, Tensor) or temperature != 1.0:
        values.div_(temperature)
    return peak


def _block_stats(
    shifted: Tensor, targets: Tensor, peak: Tensor, scratch: Tensor, keep_shifted: bool
) -> tuple[RowStats, Tensor]:
    """Statistics, [n] each, of shifted logits [n, V] with targets and peaks [n, 1].

    Also returns the exponentials [n, V], with 0 at the target, in the memory of ``scratch`` ([n or more, V]). Without
    ``keep_shifted`` the shifted logits are used up.
    """
    exps = torch.exp(shifted, out=scratch[: shifted.shape[0]])
    target = shifted.gather(-1, targets).squeeze(-1)
    products = exps * shifted if keep_shifted else shifted.mul_(exps)
    weighted = products.sum(-1)
    if not bool(torch.isfinite(weighted).all()):
        # exp(-inf) * -inf is 0 here, not NaN.
        weighted = products.masked_fill_(exps == 0, 0.0).sum(-1)
    rest = exps.scatter_(-1, targets, 0.0).sum(-1)
    impossible = target == -math.inf
    total = rest + target.exp()
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    log_total = torch.where(target == 0, torch.log1p(rest), torch.log(total))
    stats = RowStats(
        logps=(target - log_total).masked_fill(impossible, -math.inf),
        entropy=(log_total - weighted / total).masked_fill(empty, 0.0),
        peak=peak.squeeze(-1),
        total=total,
        miss=(rest / total).masked_fill(impossible, 0.0),
    )
    return stats, exps


def _block_grad(
    exps: Tensor,
    shifted: Tensor,
    targets: Tensor,
    stats: RowStats,
    grad_logps: Tensor,
    grad_entropy: Tensor | None,
    temperature: float | Tensor,
    out: Tensor,
) -> None:
    """The gradient of a block [n, V] into ``out``, from exponentials and shifted logits, which it uses up.

    Targets are [n, 1], the temperature a number or [n, 1]; statistics (of which logps are not read) and gradients [n].
    ``exps`` may hold anything at the
    target.
    """
    grad_logps, total, miss = (values.unsqueeze(-1) for values in (grad_logps, stats.total, stats.miss))
    if grad_entropy is None:
        torch.mul(exps, grad_logps / (-temperature * total), out=out)
        at_target = grad_logps * miss / temperature
    else:
        target_prob = shifted.gather(-1, targets).exp() / total
        # h (log p_j + H), 0 where p_j is 0
        pull = shifted.add_(stats.entropy.unsqueeze(-1) - total.log()).masked_fill_(shifted == -math.inf, 0.0)
        pull.mul_(grad_entropy.unsqueeze(-1))
        at_target = (grad_logps * miss - target_prob * pull.gather(-1, targets)) / temperature
        torch.mul(exps, pull.add_(grad_logps).div_(-temperature * total), out=out)
    out.scatter_(-1, targets, at_target)


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


def _zero(out: Tensor, unwanted: Tensor) -> None:
    rows = unwanted.flatten().nonzero().squeeze(-1)
    if not rows.numel():
        return
    if out.is_contiguous():
        out.view(-1, out.shape[-1]).index_fill_(0, rows, 0.0)
    else:
        length = out.shape[1]
        out[rows // length, rows % length] = 0.0
