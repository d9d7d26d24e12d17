"""Launching the kernels: the same row operations as ``grpo_kernels.torch_rows``, on tensors that Triton can reach."""

from __future__ import annotations

import contextlib
import ctypes
import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..config import GRPOLossConfig
from ..torch_rows import RowLoss, RowStats
from .kernels import grpo_kernel, row_grad_kernel, scale_rows_kernel, token_stats_kernel

# Columns that one program handles at a time, and those of one thread: 8 are one 16-byte load in bf16 and keep the
# kernels at about 64 registers. A soft cap needs a few more, which the compiler grants to small programs only.
MAX_BLOCK = 4096
MAX_BLOCK_WITH_SOFTCAP = 1024
COLUMNS_PER_THREAD = 8


def launch_settings(vocabulary: int, warp_size: int, has_softcap: bool = False) -> tuple[int, int]:
    """``(BLOCK, num_warps)`` for a vocabulary, with 32 or 64 threads a warp: powers of two, 16 warps at most."""
    largest = MAX_BLOCK_WITH_SOFTCAP if has_softcap else MAX_BLOCK
    block = min(largest, max(32, 1 << (vocabulary - 1).bit_length()))
    return block, max(1, block // (COLUMNS_PER_THREAD * warp_size))


def launch(kernel, rows: int, arguments: tuple, **constants) -> None:
    """Run one program per row, on the device of the first argument, whichever is the current one."""
    device = arguments[0].device
    if not rows:
        return
    with contextlib.nullcontext() if device.type == "cpu" else torch.get_device_module(device).device(device):
        kernel[(rows,)](*arguments, **constants)


class HeadTransform(NamedTuple):
    """What is applied to raw logits: ``softcap * tanh(logit_scale * x / softcap)``, or ``logit_scale * x`` for 0."""

    softcap: float = 0.0
    logit_scale: float = 1.0


PLAIN = HeadTransform()


def token_stats(
    logits: Tensor, ids: Tensor, active: Tensor, temperature: float | Tensor, transform: HeadTransform = PLAIN
) -> RowStats:
    """Log-probability, entropy and softmax statistics of every active row; see ``torch_rows.token_stats``."""
    stats = _empty_stats(ids)
    scales, numbers = _scales(temperature, transform)
    launch(
        token_stats_kernel,
        ids.numel(),
        (logits, ids, active, _or_else(scales, stats.logps), *stats, *_layout(logits), *numbers),
        HAS_TEMPERATURES=scales is not None,
        **_constants(logits, transform=transform),
    )
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
    """Statistics and weighted loss of every row in one launch; with ``overwrite_logits`` the gradient too, in place.

    See ``torch_rows.grpo_rows`` for the arguments.
    """
    vectors = (advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, temperatures)
    return _grpo_rows(logits, ids, active, vectors, config, logits if overwrite_logits else None, PLAIN)


def _grpo_rows(
    logits: Tensor,
    ids: Tensor,
    active: Tensor,
    vectors: tuple[Tensor | None, ...],
    config: GRPOLossConfig,
    out: Tensor | None,
    transform: HeadTransform,
) -> tuple[RowStats, RowLoss]:
    """``grpo_rows`` of raw logits; the gradient goes to ``out``, of the same strides, or nowhere."""
    advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, temperatures = vectors
    assert advantages is not None and weights is not None
    stats = _empty_stats(ids)
    row_loss = RowLoss(*(torch.empty(ids.shape, dtype=torch.float32, device=ids.device) for _ in RowLoss._fields))
    scales, numbers = _scales(config.temperature if temperatures is None else temperatures, transform)
    launch(
        grpo_kernel,
        ids.numel(),
        (
            logits,
            _or_else(out, logits),
            ids,
            active,
            advantages,
            _or_else(old_logps, advantages),
            _or_else(ref_logps, advantages),
            _or_else(token_weights, advantages),
            weights,
            _or_else(entropy_weights, weights),
            _or_else(scales, weights),
            *row_loss,
            *stats,
            *_layout(logits),
            *numbers,
            config.beta,
            1.0 - config.epsilon,
            config.upper_epsilon if config.loss_type == "cispo" else 1.0 + config.upper_epsilon,
            math.inf if config.delta is None else config.delta,
            config.sapo_temperature_pos,
            config.sapo_temperature_neg,
        ),
        OBJECTIVE="clip" if config.is_clipped else config.loss_type,
        KL="none" if ref_logps is None else config.kl_estimator,
        BIAS_CORRECTED=config.use_bias_correction_kl,
        HAS_OLD=old_logps is not None,
        HAS_TOKEN_WEIGHTS=token_weights is not None,
        HAS_ENTROPY=entropy_weights is not None,
        HAS_TEMPERATURES=scales is not None,
        WRITE_GRAD=out is not None,
        **_constants(logits, _or_else(out, logits), transform=transform),
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
    temperature: float | Tensor,
    out: Tensor,
    transform: HeadTransform = PLAIN,
) -> None:
    """Write d(loss)/d(logits) into ``out``, which may be ``logits`` itself; see ``torch_rows.row_grad``."""
    scales, numbers = _scales(temperature, transform)
    launch(
        row_grad_kernel,
        ids.numel(),
        (
            logits,
            out,
            ids,
            peak,
            total,
            miss,
            entropy,
            grad_logps,
            _or_else(grad_entropy, grad_logps),
            _or_else(scales, grad_logps),
            *_layout(logits),
            *out.stride(),
            *numbers,
        ),
        HAS_ENTROPY=grad_entropy is not None,
        HAS_TEMPERATURES=scales is not None,
        **_constants(logits, out, transform=transform),
    )


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
    """``grpo_rows`` of raw logits [n, V], with the gradient in ``out``; see ``torch_rows.fused_rows_``."""
    active = torch.ones_like(ids, dtype=torch.bool)
    vectors = (advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, temperatures)
    out = None if out is None else out.unsqueeze(0)
    return _grpo_rows(values.unsqueeze(0), ids, active, vectors, config, out, HeadTransform(softcap, logit_scale))


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
    """Statistics of raw logits [n, V], with the gradient of what is asked in ``out``; see ``torch_rows.logp_rows_``."""
    stats = stats_rows(values, ids, temperature, softcap, logit_scale)
    if out is not None:
        assert grad_logps is not None
        grad_rows_(values, ids, stats, grad_logps, grad_entropy, temperature, softcap, logit_scale, out)
    return stats


def stats_rows(
    values: Tensor, ids: Tensor, temperature: float | Tensor, softcap: float, logit_scale: float
) -> RowStats:
    """Statistics of raw logits [n, V]; see ``torch_rows.stats_rows``."""
    active = torch.ones_like(ids, dtype=torch.bool)
    return token_stats(values.unsqueeze(0), ids, active, temperature, HeadTransform(softcap, logit_scale))


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
    """The gradient of raw logits [n, V], from statistics of more columns; see ``torch_rows.grad_rows_``."""
    row_grad(
        values.unsqueeze(0), ids, stats.peak, stats.total, stats.miss, stats.entropy, grad_logps, grad_entropy,
        temperature, out=out.unsqueeze(0), transform=HeadTransform(softcap, logit_scale),
    )  # fmt: skip


def scale_rows(grad: Tensor, scale: Tensor) -> None:
    """Multiply every row of ``grad`` [B, T, V] by ``scale`` [B, T] in place; rows of scale 1 are not touched."""
    launch(scale_rows_kernel, scale.numel(), (grad, scale, *_layout(grad)), **_layout_constants(grad))


def _empty_stats(ids: Tensor) -> RowStats:
    return RowStats(*(torch.empty(ids.shape, dtype=torch.float32, device=ids.device) for _ in RowStats._fields))


def _or_else(tensor: Tensor | None, other: Tensor) -> Tensor:
    """``other`` in place of what is absent: a pointer that the kernel will not read."""
    return other if tensor is None else tensor


def _layout(logits: Tensor) -> tuple[int, ...]:
    """Length T and the three strides, in elements."""
    return logits.shape[1], *logits.stride()


def _scales(temperature: float | Tensor, transform: HeadTransform) -> tuple[Tensor | None, tuple[float, ...]]:
    """T and ``log2(e) / T`` as a sum of two fp32 numbers; and the soft cap with the factor that comes before its tanh.

    The first three are numbers, or for a temperature a row the rows of [N, 3] that is returned first. Without a soft
    cap a logit scale is a temperature.
    """
    softcap, logit_scale = transform
    cap = (softcap, logit_scale / softcap if softcap else 0.0)
    if isinstance(temperature, Tensor):
        scales = row_scales_of(temperature, transform, temperature.numel(), temperature.device)
        return scales, (1.0, 1.0, 0.0, *cap)
    exact_number = temperature / (1.0 if softcap else logit_scale)
    number = math.log2(math.e) / exact_number
    number_hi = ctypes.c_float(number).value
    return None, (exact_number, number_hi, number - number_hi, *cap)


def row_scales_of(temperature: float | Tensor, transform: HeadTransform, rows: int, device: torch.device) -> Tensor:
    """T and the two parts of ``log2(e) / T`` of every row, [rows, 3]."""
    softcap, logit_scale = transform
    exact = torch.as_tensor(temperature, dtype=torch.float64, device=device).flatten().expand(rows)
    exact = exact / (1.0 if softcap else logit_scale)
    scale = math.log2(math.e) / exact
    scale_hi = scale.float()
    return torch.stack((exact.float(), scale_hi, (scale - scale_hi).float()), dim=1)


def _constants(*tensors: Tensor, transform: HeadTransform) -> dict:
    """Compile-time constants that follow from the vocabulary, the layout of the tensors and the head."""
    return {
        "HAS_SOFTCAP": transform.softcap != 0.0,
        **_layout_constants(*tensors, has_softcap=transform.softcap != 0.0),
    }


def _layout_constants(*tensors: Tensor, has_softcap: bool = False) -> dict:
    block, num_warps = launch_settings(tensors[0].shape[-1], 64 if torch.version.hip else 32, has_softcap)
    return {
        "V": tensors[0].shape[-1],
        "BLOCK": block,
        "UNIT_STRIDE": all(tensor.stride(-1) == 1 for tensor in tensors),
        "ALIGNED": all(map(_has_aligned_rows, tensors)),
        "num_warps": num_warps,
    }


def _has_aligned_rows(tensor: Tensor) -> bool:
    return (
        all(address * tensor.element_size() % 16 == 0 for address in tensor.stride()[:2])
        and tensor.data_ptr() % 16 == 0
    )
