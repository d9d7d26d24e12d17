"""Device functions over one row of logits: the softmax statistics in one sweep, the gradient in another.

With ``d_j = x_j - peak`` (exact or nearly so) and temperature T, probabilities come from ``exp2(d_j * log2(e) / T)``.
The factor ``log2(e) / T`` arrives as the sum of two fp32 numbers (``scale_hi + scale_lo``), because rounding it to one
would cost more than all the rest.
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
# A bound of (x - peak) / T: its exponential is 0, and 0 times it is 0, where -inf would give NaN.
FLOOR = tl.constexpr(-1.0e30)
LOWEST_FLOOR = tl.constexpr(-1.0e37)


@triton.jit
def log1p(x):
    """log(1 + x), with all digits for small x >= 0 (Kahan's quotient)."""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log(u) * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit
def expm1(x):
    """exp(x) - 1, with all digits for small |x| (Kahan's quotient)."""
    u = tl.exp(x)
    near = (u != 1.0) & (tl.abs(x) < 0.5)
    return tl.where(u == 1.0, x, tl.where(near, (u - 1.0) * (x / tl.log(tl.where(near, u, 2.0))), u - 1.0))


@triton.jit
def tanh(x):
    """Hyperbolic tangent; a series where the quotient would lose the digits of a small x."""
    series = x * (1.0 - x * x * (1.0 / 3.0 - x * x * (2.0 / 15.0)))
    return tl.where(tl.abs(x) < 0.05, series, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def load_logits(row, columns, stride_v, V: tl.constexpr, UNIT_STRIDE: tl.constexpr, POLICY: tl.constexpr):
    """A block of a row in fp32; -inf beyond the vocabulary."""
    if UNIT_STRIDE:
        pointers = row + columns
    else:
        pointers = row + columns * stride_v
    return tl.load(pointers, mask=columns < V, other=float("-inf"), eviction_policy=POLICY).to(tl.float32)


@triton.jit
def capped(x, inside, softcap, cap_scale):
    """``softcap * tanh(x * cap_scale)`` of raw logits; -inf outside the vocabulary."""
    return tl.where(inside, softcap * tanh(x * cap_scale), float("-inf"))


@triton.jit
def cap_slope(x, softcap, cap_scale):
    """The derivative of ``capped``, from its value."""
    return cap_scale * (softcap - x * (x / softcap))


@triton.jit
def exponents(x, peak, floor, scale_hi, scale_lo):
    """``(x - peak) / T`` in units of ln 2, bounded below. A NaN stays."""
    d = x - peak
    d = tl.where(d < floor, floor, d)
    return d * scale_hi + d * scale_lo


@triton.jit
def floor_at(temperature):
    """FLOOR in the unit of the logits."""
    return tl.maximum(temperature * FLOOR, LOWEST_FLOOR)


@triton.jit
def row_stats(
    row,
    target,
    stride_v,
    temperature,
    scale_hi,
    scale_lo,
    softcap,
    cap_scale,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """One sweep: ``(logp, entropy, peak, total, miss)`` of a row.

    ``total`` is the sum of ``exp((x_j - peak) / T)``, ``miss`` is 1 - p_target. The target is left out of the sum until
    the end, so that ``miss``, and logp where the target is the maximum, keep their digits when p_target is almost 1.
    A target outside the vocabulary gives NaN; one whose logit is -inf gives logp = -inf and miss = 0. A row of nothing
    but -inf gives peak = 0, total = 1 and entropy 0.
    """
    inside = (target >= 0) & (target < V)
    x_target = tl.load(row + target * stride_v, mask=inside, other=float("nan")).to(tl.float32)
    if HAS_SOFTCAP:
        x_target = capped(x_target, inside, softcap, cap_scale)
    lanes = tl.arange(0, BLOCK)
    floor = floor_at(temperature)
    peak = float("-inf")
    rest_lanes = tl.zeros([BLOCK], dtype=tl.float32)
    weighted_lanes = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, V, BLOCK):
        columns = start + lanes
        x = load_logits(row, columns, stride_v, V, UNIT_STRIDE, "evict_last")
        if HAS_SOFTCAP:
            x = capped(x, columns < V, softcap, cap_scale)
        new_peak = tl.maximum(peak, tl.max(x, 0))
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        if new_peak > peak:
            drop = tl.where(peak == float("-inf"), 0.0, exponents(peak, shift, floor, scale_hi, scale_lo))
            shrink = tl.exp2(drop)
            weighted_lanes = shrink * (weighted_lanes + drop * rest_lanes)
            rest_lanes = shrink * rest_lanes
        peak = new_peak
        a = exponents(x, shift, floor, scale_hi, scale_lo)
        e = tl.where(columns == target, 0.0, tl.exp2(a))
        rest_lanes += e
        weighted_lanes += e * a
    shift = tl.where(peak == float("-inf"), 0.0, peak)
    rest = tl.sum(rest_lanes, 0)
    weighted = tl.sum(weighted_lanes, 0) * LN2
    a_target = tl.div_rn(x_target - shift, temperature)
    impossible = a_target == float("-inf")
    e_target = tl.exp(a_target)
    total = rest + e_target
    total = tl.where(peak == float("-inf"), 1.0, total)
    log_total = tl.where(a_target == 0.0, log1p(rest), tl.log(total))
    logp = tl.where(impossible, float("-inf"), a_target - log_total)
    miss = tl.where(impossible, 0.0, rest / total)
    weighted += tl.where(impossible, 0.0, e_target * a_target)
    entropy = tl.where(peak == float("-inf"), 0.0, log_total - weighted / total)
    return logp, entropy, shift, total, miss


@triton.jit
def write_row_grad(
    row,
    out_row,
    target,
    stride_v,
    out_stride_v,
    peak,
    total,
    miss,
    entropy,
    grad_logp,
    grad_entropy,
    temperature,
    scale_hi,
    scale_lo,
    softcap,
    cap_scale,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
):
    """One sweep: ``dx_j = [ g (1[j = y] - p_j) - h p_j (log p_j + H) ] / T`` into ``out_row``, which may be ``row``.

    g and h are the gradients of the row's log-probability and entropy. Where both are 0 the row is not read. The sweep
    runs backwards, so that it begins with the part of the row that the sweep before it left in cache. The target's
    logit is not read again: another thread may have overwritten it already.
    """
    lanes = tl.arange(0, BLOCK)
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    if (grad_logp == 0.0) & (grad_entropy == 0.0):
        for block in range(0, BLOCKS):
            store_grad(out_row, block * BLOCK + lanes, out_stride_v, tl.zeros([BLOCK], tl.float32), V, UNIT_STRIDE)
    else:
        inverse_total = 1.0 / total
        log_total = tl.log(total)
        at_target = grad_logp * miss
        floor = floor_at(temperature)
        for block in range(0, BLOCKS):
            columns = (BLOCKS - 1 - block) * BLOCK + lanes
            x = load_logits(row, columns, stride_v, V, UNIT_STRIDE, "evict_first")
            if HAS_SOFTCAP:
                x = capped(x, columns < V, softcap, cap_scale)
            a = exponents(x, peak, floor, scale_hi, scale_lo)
            p = tl.exp2(a) * inverse_total
            grad = tl.where(columns == target, at_target, -grad_logp * p)
            if HAS_ENTROPY:
                grad -= grad_entropy * p * (a * LN2 - log_total + entropy)
            if HAS_SOFTCAP:
                grad *= cap_slope(x, softcap, cap_scale)
            store_grad(out_row, columns, out_stride_v, grad / temperature, V, UNIT_STRIDE)


@triton.jit
def store_grad(out_row, columns, stride_v, grad, V: tl.constexpr, UNIT_STRIDE: tl.constexpr):
    """Store a block of the gradient in the dtype of the output."""
    if UNIT_STRIDE:
        pointers = out_row + columns
    else:
        pointers = out_row + columns * stride_v
    tl.store(pointers, grad.to(out_row.dtype.element_ty), mask=columns < V)


@triton.jit
def row_scales(scales_ptr, index):
    """Temperature and the two parts of ``log2(e) / T`` of a row that has its own: a row of [N, 3]."""
    row = scales_ptr + index.to(tl.int64) * 3
    return tl.load(row), tl.load(row + 1), tl.load(row + 2)


@triton.jit
def row_pointer(base, index, length, stride_b, stride_t, ALIGNED: tl.constexpr):
    """Pointer to row ``index`` of a [B, T, V] tensor, T = length, with 64-bit offsets.

    ALIGNED promises that every row begins at a multiple of 16 bytes.
    """
    row = base + (index // length).to(tl.int64) * stride_b + (index % length).to(tl.int64) * stride_t
    if ALIGNED:
        row = tl.multiple_of(row, 16)
    return row
