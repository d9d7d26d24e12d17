"""Log-probabilities and entropies straight from hidden states: product and log-sum-exp in one kernel, forward only.

A program owns a block of rows and a share of the vocabulary. It goes through its share a tile of columns at a time:
the tile's logits exist in registers, and leave behind four numbers a row. Where rows are few, the vocabulary is split
so that the programs fill the device; the splits are joined afterwards, in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..torch_rows import RowStats
from .launch import HeadTransform, launch, row_scales_of
from .row_math import capped, exponents, floor_at

# Without a measurement, an estimate: up to this many dimensions the product is short enough for the traffic of logits
# that the tiled kernel saves (8 bytes each) to make up for a library's product being faster.
TILED_WIDTH = 2048
MEASURED_ROWS = 1024
# A few rounds of programs on the largest devices, so that a last round that is not full costs little. A split adds
# next to no work: its programs read the hidden states again for every tile of columns anyway.
PROGRAMS = 1024


class TileSettings(NamedTuple):
    """Rows, columns and dimensions of a tile, with warps and pipeline stages."""

    rows: int
    columns: int
    depth: int
    num_warps: int
    num_stages: int


def tile_settings(element_size: int, warp_size: int) -> TileSettings:
    """Tiles whose operands fit into 99 KiB of shared memory (64 KiB where a warp has 64 threads).

    Nothing spills where rows begin at multiples of 16 bytes; with tiles twice as large something does, somewhere.
    """
    depth = 64 if element_size == 2 else 16
    return TileSettings(64, 128, depth, 8 if warp_size == 32 else 4, 3 if warp_size == 32 else 2)


def _jit(function):
    """Row counts, splits and what is there for each row change from step to step: none starts a new compilation."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    pointers = [name for name in names if name.endswith("_ptr") and name not in ("hidden_ptr", "weight_ptr")]
    return triton.jit(
        do_not_specialize=["count", "split_columns"], do_not_specialize_on_alignment=pointers
    )(function)  # fmt: skip


@_jit
def linear_stats_kernel(
    hidden_ptr,
    weight_ptr,
    bias_ptr,
    ids_ptr,
    scales_ptr,
    peak_ptr,
    rest_ptr,
    weighted_ptr,
    target_ptr,
    count: tl.int32,
    split_columns: tl.int32,
    hidden_stride: tl.int64,
    weight_stride: tl.int64,
    softcap: tl.float32,
    cap_scale: tl.float32,
    V: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Of a block of rows and a share of the columns: peak, sums without the target, and the target's logit.

    ``rest`` is the sum of ``exp2(a_j)`` and ``weighted`` that of ``a_j exp2(a_j)``, ``a_j = (x_j - peak) log2(e) / T``,
    both without the target. The target's logit is 0 where it is not among the columns. Results are [splits, count].
    """
    program = tl.program_id(0)
    row_blocks = tl.cdiv(count, BLOCK_M)
    split = program // row_blocks
    rows = (program % row_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = rows < count
    targets = tl.load(ids_ptr + rows, mask=is_row, other=-1).to(tl.int64)
    scales = scales_ptr + rows.to(tl.int64) * 3
    temperature = tl.load(scales, mask=is_row, other=1.0)
    scale_hi = tl.load(scales + 1, mask=is_row, other=1.0)
    scale_lo = tl.load(scales + 2, mask=is_row, other=0.0)
    floor = floor_at(temperature)
    hidden_rows = hidden_ptr + rows.to(tl.int64)[:, None] * hidden_stride

    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    rest = tl.zeros([BLOCK_M], tl.float32)
    weighted = tl.zeros([BLOCK_M], tl.float32)
    x_target = tl.zeros([BLOCK_M], tl.float32)
    first = split * split_columns
    for start in range(first, tl.minimum(first + split_columns, V), BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        is_column = columns < V
        weight_rows = weight_ptr + columns.to(tl.int64)[:, None] * weight_stride
        x = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, D, BLOCK_K):
            depth = k + tl.arange(0, BLOCK_K)
            inside = (depth < D)[None, :]
            h = tl.load(hidden_rows + depth[None, :], mask=is_row[:, None] & inside, other=0.0)
            w = tl.load(weight_rows + depth[None, :], mask=is_column[:, None] & inside, other=0.0)
            x = tl.dot(h, tl.trans(w), x, input_precision="ieee")
        if HAS_BIAS:
            x += tl.load(bias_ptr + columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
        if HAS_SOFTCAP:
            x = capped(x, is_column[None, :], softcap, cap_scale)
        else:
            x = tl.where(is_column[None, :], x, float("-inf"))
        is_target = columns.to(tl.int64)[None, :] == targets[:, None]
        x_target += tl.sum(tl.where(is_target, x, 0.0), 1)
        new_peak = tl.maximum(peak, tl.max(x, 1))
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        drop = exponents(peak, shift, floor, scale_hi, scale_lo)
        shrink = tl.exp2(drop)
        a = exponents(x, shift[:, None], floor[:, None], scale_hi[:, None], scale_lo[:, None])
        e = tl.where(is_target, 0.0, tl.exp2(a))
        weighted = shrink * (weighted + drop * rest) + tl.sum(e * a, 1)
        rest = shrink * rest + tl.sum(e, 1)
        peak = new_peak
    place = split.to(tl.int64) * count + rows
    tl.store(peak_ptr + place, peak, mask=is_row)
    tl.store(rest_ptr + place, rest, mask=is_row)
    tl.store(weighted_ptr + place, weighted, mask=is_row)
    tl.store(target_ptr + place, x_target, mask=is_row)


def tiled_token_stats(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    ids: Tensor,
    temperature: float | Tensor,
    transform: HeadTransform,
    splits: int | None = None,
) -> RowStats:
    """Statistics of the rows of ``hidden @ weight.T + bias`` at their ``ids``, [n] each, in float32.

    What they are for rows of -inf, and for targets that are -inf or outside the vocabulary, ``row_stats`` says.

    Args:
        hidden: [n, D]; weight: [V, D], of the same dtype: float32, bfloat16 or float16. bias: [V] or None.
        ids: [n], int64; temperature: a number, or [n].
        splits: shares of the vocabulary; None: as many as fill the device.
    """
    count, width = hidden.shape
    vocabulary = weight.shape[0]
    if hidden.device.type == "cpu" and hidden.dtype == torch.bfloat16:
        # Triton's interpreter multiplies bfloat16 wrongly; the products are the same in float32.
        hidden, weight = hidden.float(), weight.float()
    hidden = hidden if hidden.stride(1) == 1 else hidden.contiguous()
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    settings = tile_settings(hidden.element_size(), 64 if torch.version.hip else 32)
    row_blocks = triton.cdiv(count, settings.rows)
    tiles = triton.cdiv(vocabulary, settings.columns)
    splits = min(tiles, splits or triton.cdiv(PROGRAMS, max(row_blocks, 1)))
    split_columns = triton.cdiv(tiles, splits) * settings.columns
    splits = triton.cdiv(vocabulary, split_columns)
    parts = torch.empty(4, splits, count, dtype=torch.float32, device=hidden.device)
    scales = row_scales_of(temperature, transform, count, hidden.device)
    softcap, logit_scale = transform
    launch(
        linear_stats_kernel,
        row_blocks * splits,
        (
            hidden,
            weight,
            weight if bias is None else bias,
            ids,
            scales,
            *parts,
            count,
            split_columns,
            hidden.stride(0),
            weight.stride(0),
            softcap,
            logit_scale / softcap if softcap else 0.0,
        ),
        V=vocabulary,
        D=width,
        BLOCK_M=settings.rows,
        BLOCK_N=settings.columns,
        BLOCK_K=settings.depth,
        HAS_BIAS=bias is not None,
        HAS_SOFTCAP=softcap != 0.0,
        num_warps=settings.num_warps,
        num_stages=settings.num_stages,
    )
    is_outside = (ids < 0) | (ids >= vocabulary)
    return join_splits(parts.double(), is_outside, scales[:, 0].double())


def join_splits(parts: Tensor, is_outside: Tensor, temperature: Tensor) -> RowStats:
    """The statistics of whole rows, [n] in float32, from those of shares of the vocabulary.

    Args:
        parts: the kernel's peak, rest, weighted and target, [4, splits, n] in float64.
        is_outside: [n], bool, where the target is outside the vocabulary; temperature: [n], float64.
    """
    peak, rest, weighted, target = parts.unbind()
    whole = peak.amax(0)
    whole = whole.masked_fill(whole == -math.inf, 0.0)
    drop = ((peak - whole) / temperature).masked_fill(peak == -math.inf, 0.0)
    shrink = drop.exp()
    entropy_sum = (shrink * (weighted * math.log(2.0) + drop * rest)).sum(0)
    rest = (shrink * rest).sum(0)
    a_target = ((target.sum(0) - whole) / temperature).masked_fill(is_outside, math.nan)
    impossible = a_target == -math.inf
    total = rest + a_target.exp()
    empty = total == 0
    total = total.masked_fill(empty, 1.0)
    log_total = torch.where(a_target == 0, torch.log1p(rest), total.log())
    entropy_sum = entropy_sum + (a_target.exp() * a_target).masked_fill(impossible, 0.0)
    stats = RowStats(
        logps=(a_target - log_total).masked_fill(impossible, -math.inf),
        entropy=(log_total - entropy_sum / total).masked_fill(empty, 0.0),
        peak=whole,
        total=total,
        miss=(rest / total).masked_fill(impossible, 0.0),
    )
    return RowStats(*(values.float() for values in stats))


def prefers_tiled(hidden: Tensor, weight: Tensor, chunked: Callable[[Tensor], object]) -> bool:
    """Whether the tiled kernel is the faster way through this head.

    On a GPU both ways are timed once, on 1024 rows made of the caller's, and the answer is kept for this device, dtype
    and shape of head. Elsewhere, and while a CUDA graph is captured, it is for half precision and at most 2048
    dimensions. Without rows nothing is timed, and nothing is preferred.

    Args:
        hidden: [n, D]; weight: [V, D]; chunked: the other way, for some rows of ``hidden``.
    """
    key = (hidden.device.type, hidden.device.index, hidden.dtype, *weight.shape)
    if hidden.device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return hidden.element_size() == 2 and hidden.shape[1] <= TILED_WIDTH
    if not len(hidden):
        return False
    if key not in _MEASURED:
        rows = hidden[torch.arange(MEASURED_ROWS, device=hidden.device) % len(hidden)]
        ids = torch.zeros(rows.shape[0], dtype=torch.int64, device=rows.device)
        tiled = functools.partial(tiled_token_stats, rows, weight, None, ids, 1.0, HeadTransform())
        _MEASURED[key] = _milliseconds(tiled) < _milliseconds(functools.partial(chunked, rows))
    return _MEASURED[key]


_MEASURED: dict[tuple, bool] = {}


def _milliseconds(function: Callable[[], object]) -> float:
    function()  # compile
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(3):
        function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
