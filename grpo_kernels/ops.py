"""The row operations as torch operators, with fake (shape-only) versions and gradients.

``token_stats`` and ``grpo_rows`` leave the logits alone and are differentiable. Their backward writes the gradient over
the logits and gives that same memory to autograd, where ``memory.may_overwrite`` allows it; PyTorch's version counter
then makes any later use of the logits by autograd an error. In graphs traced by ``torch.compile`` the gradient is a new
tensor: there the compiler plans memory.

``grpo_rows_`` computes the gradient in the forward pass, over the logits.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from . import memory, torch_rows
from .config import GRPOLossConfig
from .torch_rows import RowLoss, RowStats, compute_dtype

# Numbers that may change from step to step travel in a float64 tensor on the CPU: as Python floats they would be
# constants of a compiled graph, and every new value would compile it again.
_STATS_SCHEMA = (
    "(Tensor logits, Tensor ids, Tensor active, Tensor temperature, str backend)"
    " -> (Tensor logps, Tensor entropy, Tensor peak, Tensor total, Tensor miss)"
)
_LOSS_SCHEMA = (
    "(Tensor{alias} logits, Tensor ids, Tensor active, Tensor advantages, Tensor? old_logps, Tensor? ref_logps, "
    "Tensor? token_weights, Tensor weights, Tensor? entropy_weights, Tensor? temperatures, Tensor numbers, "
    "str backend, str loss_type, str kl_estimator, bool use_bias_correction_kl)"
    " -> (Tensor loss, Tensor derivative, Tensor kl, Tensor ratio,"
    " Tensor logps, Tensor entropy, Tensor peak, Tensor total, Tensor miss)"
)
_GRAD_SCHEMA = (
    "(Tensor{alias} logits, Tensor ids, Tensor peak, Tensor total, Tensor miss, Tensor entropy, Tensor grad_logps, "
    "Tensor? grad_entropy, Tensor temperature, str backend) -> {result}"
)


def number_tensor(*numbers: float) -> Tensor:
    """Python numbers as the operators take them."""
    if torch.compiler.is_compiling():
        # The compiler keeps a number symbolic only through arithmetic with a tensor.
        zero = torch.zeros((), dtype=torch.float64, device="cpu")
        return torch.stack([zero + number for number in numbers])
    return torch.tensor(numbers, dtype=torch.float64, device="cpu")


def row_options(config: GRPOLossConfig, backend: str) -> tuple:
    """The arguments of the ``grpo_rows`` operators from ``numbers`` on. Normalisation is in the row weights."""
    numbers = number_tensor(
        config.temperature,
        config.beta,
        config.epsilon,
        config.upper_epsilon,
        math.inf if config.delta is None else config.delta,
        config.sapo_temperature_pos,
        config.sapo_temperature_neg,
    )
    objective = "grpo" if config.is_clipped else config.loss_type
    return numbers, backend, objective, config.kl_estimator, config.use_bias_correction_kl


def row_config(numbers: Tensor, loss_type: str, kl_estimator: str, use_bias_correction_kl: bool) -> GRPOLossConfig:
    """The inverse of ``row_options``."""
    temperature, beta, epsilon, epsilon_high, delta, tau_pos, tau_neg = numbers.tolist()
    return GRPOLossConfig(
        loss_type=loss_type,
        beta=beta,
        kl_estimator=kl_estimator,
        use_bias_correction_kl=use_bias_correction_kl,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        delta=None if delta == math.inf else delta,
        temperature=temperature,
        sapo_temperature_pos=tau_pos,
        sapo_temperature_neg=tau_neg,
    )


def as_temperature(temperature: Tensor) -> float | Tensor:
    """What the row operations take: the number of a ``number_tensor``, or one a row."""
    return temperature.item() if temperature.dim() == 0 else temperature


def full_precision(operator):
    """Operator implementations run outside autocast, which would round their products."""

    @functools.wraps(operator)
    def run(tensor, *arguments):
        with torch.autocast(tensor.device.type, enabled=False):
            return operator(tensor, *arguments)

    return run


def implementation(backend: str):
    """The module whose row operations run."""
    if backend == "triton":
        from .kernels import launch

        return launch
    return torch_rows


@torch.library.custom_op("grpo_kernels::token_stats", mutates_args=(), schema=_STATS_SCHEMA)
@full_precision
def token_stats(logits, ids, active, temperature, backend):
    """``(logps, entropy, peak, total, miss)`` of every active row, [B, T] each; the first two are differentiable."""
    return tuple(implementation(backend).token_stats(logits, ids, active, as_temperature(temperature)))


@torch.library.custom_op("grpo_kernels::grpo_rows", mutates_args=(), schema=_LOSS_SCHEMA.format(alias=""))
@full_precision
def grpo_rows(logits, *arguments):
    """``(loss, derivative, kl, ratio)`` and the statistics of every row, [B, T] each; ``loss`` is differentiable."""
    return _run_grpo_rows(logits, *arguments, overwrite_logits=False)


@torch.library.custom_op("grpo_kernels::grpo_rows_", mutates_args=("logits",), schema=_LOSS_SCHEMA.format(alias="(a!)"))
@full_precision
def grpo_rows_(logits, *arguments):
    """``grpo_rows`` that turns the logits into the gradient of ``loss.sum()``."""
    return _run_grpo_rows(logits, *arguments, overwrite_logits=True)


def _run_grpo_rows(
    logits, ids, active, advantages, old, ref, token_weights, weights, entropy_weights, temperatures, numbers, backend,
    *options, overwrite_logits,
):  # fmt: skip
    config = row_config(numbers, *options)
    stats, row_loss = implementation(backend).grpo_rows(
        logits, ids, active, advantages, old, ref, token_weights, weights, entropy_weights, temperatures, config,
        overwrite_logits,
    )  # fmt: skip
    return (*row_loss, *stats)


@torch.library.custom_op(
    "grpo_kernels::row_grad", mutates_args=(), schema=_GRAD_SCHEMA.format(alias="", result="Tensor")
)
@full_precision
def row_grad(logits, ids, peak, total, miss, entropy, grad_logps, grad_entropy, temperature, backend):
    """d(loss)/d(logits) in memory of its own; see ``torch_rows.row_grad``."""
    out = torch.empty_like(logits)
    implementation(backend).row_grad(
        logits, ids, peak, total, miss, entropy, grad_logps, grad_entropy, as_temperature(temperature), out
    )
    return out


@torch.library.custom_op(
    "grpo_kernels::row_grad_", mutates_args=("logits",), schema=_GRAD_SCHEMA.format(alias="(a!)", result="()")
)
@full_precision
def row_grad_(logits, ids, peak, total, miss, entropy, grad_logps, grad_entropy, temperature, backend):
    """d(loss)/d(logits), written over the logits."""
    implementation(backend).row_grad(
        logits, ids, peak, total, miss, entropy, grad_logps, grad_entropy, as_temperature(temperature), out=logits
    )


@torch.library.custom_op(
    "grpo_kernels::scale_rows_", mutates_args=("grad",), schema="(Tensor(a!) grad, Tensor scale, str backend) -> ()"
)
@full_precision
def scale_rows_(grad, scale, backend):
    """Multiply every row of ``grad`` [B, T, V] by ``scale`` [B, T]."""
    implementation(backend).scale_rows(grad, scale)


@token_stats.register_fake
def _(logits, ids, active, temperature, backend):
    return fake_rows(logits, ids, len(RowStats._fields))


@grpo_rows.register_fake
def _(logits, ids, *arguments):
    return fake_rows(logits, ids, len(RowLoss._fields) + len(RowStats._fields))


@grpo_rows_.register_fake
def _(logits, ids, *arguments):
    return fake_rows(logits, ids, len(RowLoss._fields) + len(RowStats._fields))


@row_grad.register_fake
def _(logits, *arguments):
    return torch.empty_like(logits)


@row_grad_.register_fake
def _(logits, *arguments):
    return None


@scale_rows_.register_fake
def _(grad, scale, backend):
    return None


def fake_rows(logits: Tensor, ids: Tensor, count: int) -> tuple[Tensor, ...]:
    return tuple(ids.new_empty(ids.shape, dtype=compute_dtype(logits)) for _ in range(count))


def _save_token_stats(ctx, inputs, output):
    logits, ids, active, temperature, ctx.backend = inputs
    _, entropy, peak, total, miss = output
    ctx.save_for_backward(logits, ids, active, peak, total, miss, entropy, temperature)
    ctx.set_materialize_grads(False)


def _token_stats_backward(ctx, grad_logps, grad_entropy, *_):
    logits, ids, active, peak, total, miss, entropy, temperature = ctx.saved_tensors
    if grad_logps is None:
        grad_logps = torch.zeros_like(total)
    stats = (ids, active, peak, total, miss, entropy)
    return logits_grad(logits, stats, grad_logps, grad_entropy, temperature, ctx.backend), None, None, None, None


def _save_grpo_rows(ctx, inputs, output):
    logits, ids, active = inputs[:3]
    entropy_weights, temperatures, numbers, ctx.backend = inputs[8:12]
    temperature = numbers[0] if temperatures is None else temperatures
    _, derivative, _, _, _, entropy, peak, total, miss = output
    ctx.save_for_backward(
        logits, ids, active, peak, total, miss, entropy, temperature, derivative, entropy_weights
    )  # fmt: skip


def _grpo_rows_backward(ctx, grad_loss, *_):
    logits, ids, active, peak, total, miss, entropy, temperature, derivative, entropy_weights = ctx.saved_tensors
    grad_entropy = None if entropy_weights is None else -grad_loss * entropy_weights
    stats = (ids, active, peak, total, miss, entropy)
    return logits_grad(logits, stats, grad_loss * derivative, grad_entropy, temperature, ctx.backend), *[None] * 14


token_stats.register_autograd(_token_stats_backward, setup_context=_save_token_stats)
grpo_rows.register_autograd(_grpo_rows_backward, setup_context=_save_grpo_rows)


def logits_grad(
    logits: Tensor,
    stats: tuple[Tensor, ...],
    grad_logps: Tensor,
    grad_entropy: Tensor | None,
    temperature: Tensor,
    backend: str,
) -> Tensor:
    """The gradient of the logits, over the logits themselves where that is allowed.

    ``stats`` are ``(ids, active, peak, total, miss, entropy)``; inactive rows have no gradient.
    """
    ids, active, *row_stats = stats
    inactive = ~active
    arguments = (
        ids,
        *row_stats,
        grad_logps.masked_fill(inactive, 0.0).contiguous(),
        None if grad_entropy is None else grad_entropy.masked_fill(inactive, 0.0).contiguous(),
        temperature,
        backend,
    )
    if type(logits) is Tensor and not torch.compiler.is_compiling():
        refuse_second_derivatives()
        if memory.may_overwrite(logits):
            grad = logits.detach()
            row_grad_(grad, *arguments)
            memory.mark_overwritten(logits)
            return grad
    return row_grad(logits, *arguments)


def refuse_second_derivatives() -> None:
    """In a backward pass: gradients are enabled only if the caller wants to differentiate it again."""
    if torch.is_grad_enabled():
        raise RuntimeError("grpo_kernels computes first derivatives only: call backward without create_graph=True")
