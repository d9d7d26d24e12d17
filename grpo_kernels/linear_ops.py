"""The chunk loops as torch operators with gradients.

Outside ``torch.compile`` the loops run as they are, so that profilers and counters see their matrix products; in traced
graphs each is one opaque operator.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .linear import Head, HeadGrads, chunk_memory, logp_chunks, loss_chunks
from .ops import as_temperature, fake_rows, full_precision, implementation, refuse_second_derivatives, row_config
from .torch_rows import compute_dtype
from .vocab_parallel import ShardedRows, VocabShard

# Gradients are computed in the forward pass: those of hidden, weight and bias that are wanted; the others are empty.
_LINEAR_LOSS_SCHEMA = (
    "(Tensor hidden, Tensor weight, Tensor? bias, Tensor ids, Tensor needed, Tensor advantages, Tensor? old_logps, "
    "Tensor? ref_logps, Tensor? token_weights, Tensor weights, Tensor? entropy_weights, Tensor? temperatures, "
    "Tensor numbers, Tensor head_numbers, int chunk_rows, bool round_logits, bool[] wanted, "
    "str backend, str loss_type, str kl_estimator, bool use_bias_correction_kl)"
    " -> (Tensor loss, Tensor kl, Tensor ratio, Tensor logps, Tensor entropy,"
    " Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)"
)
_LINEAR_LOGPS_SCHEMA = (
    "(Tensor hidden, Tensor weight, Tensor? bias, Tensor ids, Tensor needed, Tensor? grad_logps, "
    "Tensor? grad_entropy, Tensor temperature, Tensor head_numbers, int chunk_rows, "
    "bool round_logits, bool[] wanted, str backend)"
    " -> (Tensor logps, Tensor entropy, Tensor grad_hidden, Tensor grad_weight, Tensor grad_bias)"
)


@full_precision
def run_linear_grpo_rows(
    hidden, weight, bias, ids, needed, advantages, old, ref, token_weights, weights, entropy_weights, temperatures,
    numbers, head_numbers, chunk_rows, round_logits, wanted, backend, loss_type, kl_estimator, use_bias_correction_kl,
    shard=None,
):  # fmt: skip
    """``grpo_rows`` from hidden states [B, T, D] and a head; ``needed`` [B, T] are the rows to compute."""
    vectors = (advantages, old, ref, token_weights, weights, entropy_weights, temperatures)
    stats, row_loss, grads = loss_chunks(
        hidden.reshape(-1, hidden.shape[-1]),
        _head(weight, bias, head_numbers, shard),
        ids.flatten(),
        needed.flatten(),
        [None if vector is None else vector.flatten() for vector in vectors],
        row_config(numbers, loss_type, kl_estimator, use_bias_correction_kl),
        chunk_memory(hidden, chunk_rows, round_logits),
        wanted,
        _row_operations(backend, shard),
    )
    rows = (row_loss.loss, row_loss.kl, row_loss.ratio, stats.logps, stats.entropy)
    return (*(values.view(ids.shape) for values in rows), *_present(grads, hidden))


@full_precision
def run_linear_token_logps(
    hidden, weight, bias, ids, needed, grad_logps, grad_entropy, temperature, head_numbers, chunk_rows, round_logits,
    wanted, backend, shard=None,
):  # fmt: skip
    """Log-probabilities and entropies from hidden states [B, T, D], and the gradients of their weighted sum."""
    stats, grads = logp_chunks(
        hidden.reshape(-1, hidden.shape[-1]),
        _head(weight, bias, head_numbers, shard),
        ids.flatten(),
        needed.flatten(),
        None if grad_logps is None else grad_logps.flatten(),
        None if grad_entropy is None else grad_entropy.flatten(),
        as_temperature(temperature.flatten() if temperature.dim() else temperature),
        chunk_memory(hidden, chunk_rows, round_logits),
        wanted,
        _row_operations(backend, shard),
    )
    return stats.logps.view(ids.shape), stats.entropy.view(ids.shape), *_present(grads, hidden)


def _head(weight: Tensor, bias: Tensor | None, head_numbers: Tensor, shard: VocabShard | None) -> Head:
    softcap, logit_scale = head_numbers.tolist()
    return Head(weight, bias, softcap, logit_scale, shard)


def _row_operations(backend: str, shard: VocabShard | None):
    return implementation(backend) if shard is None else ShardedRows(shard, backend)


def _present(grads: HeadGrads, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Empty tensors stand for gradients that were not wanted."""
    return (
        hidden.new_empty(0) if grads.hidden is None else grads.hidden.view(hidden.shape),
        hidden.new_empty(0) if grads.weight is None else grads.weight,
        hidden.new_empty(0) if grads.bias is None else grads.bias,
    )


def _fake_grads(hidden: Tensor, weight: Tensor, bias: Tensor | None, wanted: list[bool]) -> tuple[Tensor, ...]:
    tensors = (hidden, weight, bias)
    return tuple(
        torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device) if want and tensor is not None
        else hidden.new_empty(0)
        for tensor, want in zip(tensors, wanted, strict=True)
    )  # fmt: skip


linear_grpo_rows = torch.library.custom_op(
    "grpo_kernels::linear_grpo_rows", run_linear_grpo_rows, mutates_args=(), schema=_LINEAR_LOSS_SCHEMA
)
linear_token_logps = torch.library.custom_op(
    "grpo_kernels::linear_token_logps", run_linear_token_logps, mutates_args=(), schema=_LINEAR_LOGPS_SCHEMA
)


@linear_grpo_rows.register_fake
def _(hidden, weight, bias, ids, *arguments):
    return (*fake_rows(hidden, ids, 5), *_fake_grads(hidden, weight, bias, arguments[12]))


@linear_token_logps.register_fake
def _(hidden, weight, bias, ids, *arguments):
    return (*fake_rows(hidden, ids, 2), *_fake_grads(hidden, weight, bias, arguments[7]))


def _is_traced(hidden: Tensor) -> bool:
    return torch.compiler.is_compiling() or isinstance(hidden, FakeTensor)


# The last argument is a VocabShard or None: None where something is traced, and no part of the operators.
def _grpo_rows(hidden: Tensor, *arguments):
    if _is_traced(hidden):
        return linear_grpo_rows(hidden, *arguments[:-1])
    return run_linear_grpo_rows(hidden, *arguments)


def _token_logps(hidden: Tensor, *arguments):
    if _is_traced(hidden):
        return linear_token_logps(hidden, *arguments[:-1])
    return run_linear_token_logps(hidden, *arguments)


class LinearRows(torch.autograd.Function):
    """``(loss, kl, ratio, logps, entropy)`` of every row. The forward pass computes the gradient of the summed loss."""

    @staticmethod
    def forward(ctx, *arguments):
        *rows, grad_hidden, grad_weight, grad_bias = _grpo_rows(*arguments)
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.wanted = arguments[16]
        ctx.mark_non_differentiable(*rows[1:])
        return tuple(rows)

    @staticmethod
    def backward(ctx, grad_loss, *_):
        refuse_second_derivatives()
        # The loss is the sum of its rows: one number scales them all.
        scale = grad_loss.flatten()[:1]
        grads = [
            _scaled(grad, scale) if want else None for grad, want in zip(ctx.saved_tensors, ctx.wanted, strict=True)
        ]
        return *grads, *[None] * 19


class KeptLogps(torch.autograd.Function):
    """Log-probabilities whose derivative with respect to the hidden states is kept from the forward pass."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, ids, needed, temperature, *options):
        ones = torch.ones_like(ids, dtype=compute_dtype(hidden))
        logps, entropy, derivative, *_ = _token_logps(
            hidden, weight, bias, ids, needed, ones, None, temperature, *options
        )
        ctx.save_for_backward(derivative)
        ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx, grad_logps, _):
        refuse_second_derivatives()
        (derivative,) = ctx.saved_tensors
        return _scaled(derivative, grad_logps.unsqueeze(-1)), *[None] * 11


class RecomputedLogps(torch.autograd.Function):
    """Log-probabilities and entropies whose chunks are computed again in backward, with the gradients known."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, ids, needed, temperature, numbers, *options):
        *memory, wanted, backend, shard = options
        logps, entropy, *_ = _token_logps(
            hidden, weight, bias, ids, needed, None, None, temperature, numbers, *memory, [False] * 3, backend, shard
        )
        ctx.save_for_backward(hidden, weight, bias, ids, needed, temperature, numbers)
        ctx.wanted, ctx.options = wanted, options
        return logps, entropy

    @staticmethod
    def backward(ctx, grad_logps, grad_entropy):
        refuse_second_derivatives()
        hidden, weight, bias, ids, needed, temperature, numbers = ctx.saved_tensors
        needed = needed & ((grad_logps != 0) | (grad_entropy != 0))
        shard = ctx.options[-1]
        if shard is not None:
            needed = shard.any(needed)
        _, _, *grads = _token_logps(
            hidden, weight, bias, ids, needed, grad_logps, grad_entropy, temperature, numbers, *ctx.options
        )
        return *(grad if want else None for grad, want in zip(grads, ctx.wanted, strict=True)), *[None] * 9


def _scaled(grad: Tensor, scale: Tensor) -> Tensor:
    """``grad * scale`` in the dtype of the gradient, with the scale unrounded."""
    return torch.mul(grad, scale, out=torch.empty_like(grad))
