"""The kernels: one program per row (token), one-dimensional grids.

Sizes, strides and options that change from step to step are run-time arguments, so that a training run compiles each
kernel once; the vocabulary, dtypes and the objective are compile-time constants.
"""

import triton
import triton.language as tl

from .objective import token_objective
from .row_math import load_logits, row_pointer, row_scales, row_stats, store_grad, write_row_grad

# Values that must not start a new compilation: Triton would otherwise specialise integers on being 1 or a multiple
# of 16, and pointers on their alignment. ALIGNED carries what is known of the logits' rows.
_RUN_TIME = ["length", "stride_b", "stride_t", "stride_v", "out_stride_b", "out_stride_t", "out_stride_v"]
_ROW_POINTERS = [
    "logits_ptr", "out_ptr", "ids_ptr", "active_ptr", "advantages_ptr", "old_logps_ptr", "ref_logps_ptr",
    "token_weights_ptr", "weights_ptr", "entropy_weights_ptr", "scales_ptr", "loss_ptr", "derivative_ptr", "kl_ptr",
    "ratio_ptr", "logps_ptr", "entropy_ptr", "peak_ptr", "total_ptr", "miss_ptr", "grad_logps_ptr", "grad_entropy_ptr",
    "scale_ptr",
]  # fmt: skip


def _jit(function):
    """``triton.jit`` that leaves unspecialised whichever of the run-time arguments the kernel has."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return triton.jit(
        do_not_specialize=[name for name in _RUN_TIME if name in names],
        do_not_specialize_on_alignment=[name for name in _ROW_POINTERS if name in names],
    )(function)


@_jit
def grpo_kernel(
    logits_ptr,
    out_ptr,
    ids_ptr,
    active_ptr,
    advantages_ptr,
    old_logps_ptr,
    ref_logps_ptr,
    token_weights_ptr,
    weights_ptr,
    entropy_weights_ptr,
    scales_ptr,
    loss_ptr,
    derivative_ptr,
    kl_ptr,
    ratio_ptr,
    logps_ptr,
    entropy_ptr,
    peak_ptr,
    total_ptr,
    miss_ptr,
    length: tl.int32,
    stride_b: tl.int64,
    stride_t: tl.int64,
    stride_v: tl.int64,
    temperature: tl.float32,
    scale_hi: tl.float32,
    scale_lo: tl.float32,
    softcap: tl.float32,
    cap_scale: tl.float32,
    beta: tl.float32,
    low: tl.float32,
    high: tl.float32,
    delta: tl.float32,
    tau_pos: tl.float32,
    tau_neg: tl.float32,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    OBJECTIVE: tl.constexpr,
    KL: tl.constexpr,
    BIAS_CORRECTED: tl.constexpr,
    HAS_OLD: tl.constexpr,
    HAS_TOKEN_WEIGHTS: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    HAS_TEMPERATURES: tl.constexpr,
    WRITE_GRAD: tl.constexpr,
):
    """Statistics, objective and weighting of a row; with WRITE_GRAD its gradient goes to ``out``.

    ``out`` has the strides of the logits, and may be the logits.
    Inactive rows are not read: their loss and statistics are 0, their ratio 1, their gradient 0.
    """
    i = tl.program_id(0)
    if HAS_TEMPERATURES:
        temperature, scale_hi, scale_lo = row_scales(scales_ptr, i)
    row = row_pointer(logits_ptr, i, length, stride_b, stride_t, ALIGNED)
    target = tl.load(ids_ptr + i).to(tl.int64)
    active = tl.load(active_ptr + i) != 0
    # Defaults of an inactive row; 0.0 * tau_pos makes run-time scalars of them.
    zero = 0.0 * tau_pos
    logp, entropy, peak, total, miss = zero, zero, zero, zero, zero
    loss, derivative, kl, ratio, entropy_weight = zero, zero, zero, zero + 1.0, zero
    if active:
        logp, entropy, peak, total, miss = row_stats(
            row, target, stride_v, temperature, scale_hi, scale_lo, softcap, cap_scale,
            V, BLOCK, UNIT_STRIDE, HAS_SOFTCAP,
        )  # fmt: skip
        advantage = tl.load(advantages_ptr + i)
        weight = tl.load(weights_ptr + i)
        old_logp = tl.load(old_logps_ptr + i) if HAS_OLD else 0.0
        ref_logp = tl.load(ref_logps_ptr + i) if KL != "none" else 0.0
        token_weight = tl.load(token_weights_ptr + i) if HAS_TOKEN_WEIGHTS else 1.0
        loss, derivative, kl, ratio = token_objective(
            logp, old_logp, ref_logp, advantage, token_weight, beta, low, high, delta, tau_pos, tau_neg,
            OBJECTIVE, KL, BIAS_CORRECTED, HAS_OLD,
        )  # fmt: skip
        loss *= weight
        derivative *= weight
        if HAS_ENTROPY:
            entropy_weight = tl.load(entropy_weights_ptr + i)
            loss -= entropy_weight * entropy
    tl.store(loss_ptr + i, loss)
    tl.store(derivative_ptr + i, derivative)
    tl.store(kl_ptr + i, kl)
    tl.store(ratio_ptr + i, ratio)
    tl.store(logps_ptr + i, logp)
    tl.store(entropy_ptr + i, entropy)
    tl.store(peak_ptr + i, peak)
    tl.store(total_ptr + i, total)
    tl.store(miss_ptr + i, miss)
    if WRITE_GRAD:
        out_row = row_pointer(out_ptr, i, length, stride_b, stride_t, ALIGNED)
        write_row_grad(
            row, out_row, target, stride_v, stride_v, peak, total, miss, entropy, derivative, -entropy_weight,
            temperature, scale_hi, scale_lo, softcap, cap_scale, V, BLOCK, UNIT_STRIDE, HAS_SOFTCAP, HAS_ENTROPY,
        )  # fmt: skip


@_jit
def token_stats_kernel(
    logits_ptr,
    ids_ptr,
    active_ptr,
    scales_ptr,
    logps_ptr,
    entropy_ptr,
    peak_ptr,
    total_ptr,
    miss_ptr,
    length: tl.int32,
    stride_b: tl.int64,
    stride_t: tl.int64,
    stride_v: tl.int64,
    temperature: tl.float32,
    scale_hi: tl.float32,
    scale_lo: tl.float32,
    softcap: tl.float32,
    cap_scale: tl.float32,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_TEMPERATURES: tl.constexpr,
):
    """Log-probability of the target, entropy and softmax statistics of a row; 0 for inactive rows."""
    i = tl.program_id(0)
    if HAS_TEMPERATURES:
        temperature, scale_hi, scale_lo = row_scales(scales_ptr, i)
    row = row_pointer(logits_ptr, i, length, stride_b, stride_t, ALIGNED)
    target = tl.load(ids_ptr + i).to(tl.int64)
    zero = 0.0 * temperature
    logp, entropy, peak, total, miss = zero, zero, zero, zero, zero
    if tl.load(active_ptr + i) != 0:
        logp, entropy, peak, total, miss = row_stats(
            row, target, stride_v, temperature, scale_hi, scale_lo, softcap, cap_scale,
            V, BLOCK, UNIT_STRIDE, HAS_SOFTCAP,
        )  # fmt: skip
    tl.store(logps_ptr + i, logp)
    tl.store(entropy_ptr + i, entropy)
    tl.store(peak_ptr + i, peak)
    tl.store(total_ptr + i, total)
    tl.store(miss_ptr + i, miss)


@_jit
def row_grad_kernel(
    logits_ptr,
    out_ptr,
    ids_ptr,
    peak_ptr,
    total_ptr,
    miss_ptr,
    entropy_ptr,
    grad_logps_ptr,
    grad_entropy_ptr,
    scales_ptr,
    length: tl.int32,
    stride_b: tl.int64,
    stride_t: tl.int64,
    stride_v: tl.int64,
    out_stride_b: tl.int64,
    out_stride_t: tl.int64,
    out_stride_v: tl.int64,
    temperature: tl.float32,
    scale_hi: tl.float32,
    scale_lo: tl.float32,
    softcap: tl.float32,
    cap_scale: tl.float32,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
    HAS_TEMPERATURES: tl.constexpr,
):
    """The gradient of a row from its saved statistics, into ``out``, which may be the logits themselves."""
    i = tl.program_id(0)
    if HAS_TEMPERATURES:
        temperature, scale_hi, scale_lo = row_scales(scales_ptr, i)
    row = row_pointer(logits_ptr, i, length, stride_b, stride_t, ALIGNED)
    out_row = row_pointer(out_ptr, i, length, out_stride_b, out_stride_t, ALIGNED)
    grad_logp = tl.load(grad_logps_ptr + i)
    grad_entropy = tl.load(grad_entropy_ptr + i) if HAS_ENTROPY else 0.0 * grad_logp
    write_row_grad(
        row, out_row, tl.load(ids_ptr + i).to(tl.int64), stride_v, out_stride_v, tl.load(peak_ptr + i),
        tl.load(total_ptr + i), tl.load(miss_ptr + i), tl.load(entropy_ptr + i), grad_logp, grad_entropy,
        temperature, scale_hi, scale_lo, softcap, cap_scale, V, BLOCK, UNIT_STRIDE, HAS_SOFTCAP, HAS_ENTROPY,
    )  # fmt: skip


@_jit
def scale_rows_kernel(
    out_ptr,
    scale_ptr,
    length: tl.int32,
    stride_b: tl.int64,
    stride_t: tl.int64,
    stride_v: tl.int64,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    UNIT_STRIDE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Multiply a row by its scale; a scale of 1 touches nothing."""
    i = tl.program_id(0)
    scale = tl.load(scale_ptr + i)
    if scale != 1.0:
        row = row_pointer(out_ptr, i, length, stride_b, stride_t, ALIGNED)
        for start in range(0, V, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            values = load_logits(row, columns, stride_v, V, UNIT_STRIDE, "evict_first")
            store_grad(row, columns, stride_v, values * scale, V, UNIT_STRIDE)
