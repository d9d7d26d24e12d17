"""The public functions: check, dispatch to a backend, and put the results together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import ops
from .backend import choose_backend
from .checks import (
    TokenArguments,
    check_cu_seqlens,
    check_logits_and_ids,
    check_loss_arguments,
    check_temperature,
    check_values,
)
from .config import GRPOLossConfig
from .layout import Layout, Packed, Padded, packed_layout
from .memory import check_may_be_overwritten, check_not_overwritten, mark_overwritten
from .metrics import loss_metrics
from .objective import TokenLoss, entropy_weights, per_token_loss, row_weights, total_loss
from .reference import eager_grpo_loss, eager_token_logps
from .torch_rows import compute_dtype


@dataclass(frozen=True)
class GRPOLossOutput:
    """What ``grpo_loss`` returns. Everything but ``loss`` is detached and is 0 (``ratio``: 1) at masked tokens.

    [B, T] stands for [N] where sequences are packed.

    Attributes:
        loss: 0-d, differentiable with respect to the logits; float32 (float64 for float64 logits).
        logps: [B, T], log-probability of each token at the temperature.
        entropy: [B, T], in nats, at the temperature.
        kl: [B, T], the KL estimate per token, or None without ``ref_logps``.
        ratio: [B, T], or [B, 1] at sequence level: the importance ratio.
        metrics: TRL's means as 0-d tensors, such as ``clip_ratio/region_mean``, ``entropy`` and ``kl``.
    """

    loss: Tensor
    logps: Tensor
    entropy: Tensor
    kl: Tensor | None
    ratio: Tensor
    metrics: dict[str, Tensor]


def grpo_loss(
    logits: Tensor,
    completion_ids: Tensor,
    advantages: Tensor,
    *,
    completion_mask: Tensor | None = None,
    old_logps: Tensor | None = None,
    ref_logps: Tensor | None = None,
    token_weights: Tensor | None = None,
    temperatures: Tensor | None = None,
    num_items_in_batch: Tensor | float | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    overwrite_logits: bool = False,
    backend: str | None = None,
    config: GRPOLossConfig = GRPOLossConfig(),  # noqa: B008 (frozen)
) -> GRPOLossOutput:
    """The GRPO loss (DeepSeekMath, 2402.03300, and the variants of ``GRPOLossConfig``) from logits.

    No tensor of the size of the logits is allocated: backward writes the gradient over the logits. Any use of the same
    logits after that raises an error, autograd's or ours; give this function ``logits.clone()`` where they are needed
    again. Logits that are a leaf (or a view of one), overlap themselves, or come from ``torch.compile`` or another
    Python autograd function keep their values, and their gradient gets memory of its own. (For a slice such as
    ``logits[:, :-1]``, PyTorch's own backward of the slice allocates the gradient of the whole.)

    Args:
        logits: [B, T, V], float32, bfloat16, float16 or float64, any strides (``logits[:, -T-1:-1]`` is not copied);
            row t predicts token t of the completion. Arithmetic is float32 (float64 for float64 logits).
            Values of -inf are probability 0.
        completion_ids: [B, T], int64 or int32; anything where the mask is 0.
        advantages: [B], [B, 1] or [B, T], finite.
        completion_mask: [B, T], bool, or numbers that are 0 or 1: the tokens that count; None means all.
        old_logps: [B, T], log-probabilities under the policy that sampled, at the same temperature. None means that
            this policy sampled them: the ratio is exactly 1 and carries the gradient.
        ref_logps: [B, T], log-probabilities under the reference; required when ``config.beta`` is not 0.
        token_weights: [B, T] or [B, 1], multiplied into the policy term (importance-sampling correction, masks). For
            vespo they enter its sequence weight instead, at masked tokens too, as in TRL: put 1 there.
        temperatures: [B] or [B, 1], > 0 (at least 1e-6): the temperature that each sequence was sampled at, instead of
            ``config.temperature``.
        num_items_in_batch: tokens in the whole accumulated batch, for dapo, cispo and vespo: a number > 0, or a tensor
            that holds one; None means this call's.
        cu_seqlens: [B + 1], int32 or int64, for packed sequences: sequence k is rows ``cu_seqlens[k]`` to
            ``cu_seqlens[k + 1]``. Logits are then [N, V], what is [B, T] here is [N], and so are the results.
        max_seqlen: the longest packed sequence, or more; None reads it off the device.
        overwrite_logits: the caller owns the logits and will not read them again: the gradient replaces them during
            the forward pass, which saves reading them again in backward.
        backend: "triton", "torch" or "eager"; None chooses by device, or by ``GRPO_KERNELS_BACKEND``.
        config: the objective.

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    given = TokenArguments(
        completion_ids, advantages, completion_mask, old_logps, ref_logps, token_weights, temperatures
    )
    check_logits_and_ids(logits, completion_ids, "completion_ids", packed=cu_seqlens is not None)
    check_not_overwritten(logits)
    if cu_seqlens is not None:
        max_seqlen = check_cu_seqlens(cu_seqlens, max_seqlen, completion_ids)
    check_loss_arguments(given, num_items_in_batch, config, ref_logps is not None, cu_seqlens)
    backend = choose_backend(backend, logits)
    tokens = prepare_tokens(given, cu_seqlens, max_seqlen, compute_dtype(logits), config)
    num_items_in_batch = as_number(num_items_in_batch, tokens.mask)
    check_values(
        given.ids, "completion_ids", logits.shape[-1], given.mask, tokens.advantages, num_items_in_batch, temperatures
    )
    if cu_seqlens is not None:
        logits = logits.unsqueeze(0)
    if backend == "eager":
        loss, logps, entropy, result = eager_grpo_loss(
            tokens.layout.tokens(logits), tokens.ids, tokens.advantages, tokens.mask, config,
            tokens.old_logps, tokens.ref_logps, tokens.token_weights, num_items_in_batch, tokens.temperatures,
        )  # fmt: skip
    elif config.needs_whole_sequence:
        loss, logps, entropy, result = _in_two_launches(logits, tokens, num_items_in_batch, config, backend)
    else:
        loss, logps, entropy, result = _in_one_launch(
            logits, tokens, num_items_in_batch, config, backend, overwrite_logits
        )
    return loss_output(loss, logps, entropy, result, tokens, config)


def token_logps(
    logits: Tensor,
    ids: Tensor,
    temperature: float | Tensor = 1.0,
    return_entropy: bool = False,
    *,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probabilities of ``ids``, differentiable, in bounded memory: for old and reference passes, SFT, DPO, PPO.

    Backward writes the gradient over the logits, as for ``grpo_loss``.

    Args:
        logits: [B, T, V] (or [N, V]), float32, bfloat16, float16 or float64, any strides.
        ids: [B, T] (or [N]), int64 or int32, within the vocabulary.
        temperature: > 0 (at least 1e-6), logits are divided by it: a number, or [B] or [B, 1] with one a sequence
            (in general [B, T]; [N]).
        return_entropy: also return the entropies, in nats, differentiable.
        backend: as for ``grpo_loss``.

    Returns:
        logps [B, T] (or [N]), or ``(logps, entropy)``; float32 (float64 for float64 logits).

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    packed = isinstance(logits, Tensor) and logits.dim() == 2
    check_logits_and_ids(logits, ids, "ids", packed=packed)
    check_not_overwritten(logits)
    check_temperature(temperature, ids)
    backend = choose_backend(backend, logits)
    temperatures = temperature if isinstance(temperature, Tensor) else None
    check_values(ids, "ids", logits.shape[-1], temperatures=temperatures)
    if packed:
        logits, ids = logits.unsqueeze(0), ids.unsqueeze(0)
    temperature = row_temperature(temperature, ids, compute_dtype(logits))
    active = torch.ones_like(ids, dtype=torch.bool)
    ids = ids.to(torch.int64)
    if backend == "eager":
        logps, entropy = eager_token_logps(logits, ids, temperature)
    else:
        logps, entropy, *_ = ops.token_stats(logits, ids.contiguous(), active, temperature, backend)
    logps, entropy = (values.to(compute_dtype(logits)) for values in (logps, entropy))
    if packed:
        logps, entropy = logps.squeeze(0), entropy.squeeze(0)
    return (logps, entropy) if return_entropy else logps


class Tokens(NamedTuple):
    """What the loss knows of the tokens besides their logits, checked, detached and in the compute dtype.

    [B, T], but advantages, token weights and temperatures may be [B, 1]. At inactive tokens ids, old and reference
    log-probabilities are 0, whatever the caller's padding held. ``layout`` leads to the rows of the logits and back.
    """

    ids: Tensor
    active: Tensor
    mask: Tensor
    advantages: Tensor
    old_logps: Tensor | None
    ref_logps: Tensor | None
    token_weights: Tensor | None
    temperatures: Tensor | None
    layout: Layout

    def row_values(self, values: Tensor | None) -> Tensor | None:
        """Values per token, or per sequence, as a contiguous vector of the rows."""
        return None if values is None else self.layout.rows(values.expand_as(self.ids)).contiguous()

    def row_temperature(self, config: GRPOLossConfig) -> Tensor:
        """One temperature a row, or the one number, as the operators take it."""
        temperatures = self.row_values(self.temperatures)
        return ops.number_tensor(config.temperature)[0] if temperatures is None else temperatures


def row_temperature(temperature: float | Tensor, ids: Tensor, dtype: torch.dtype) -> Tensor:
    """A checked temperature as the operators take it: a number, or one for each of ``ids`` in the compute dtype."""
    if not isinstance(temperature, Tensor):
        return ops.number_tensor(temperature)[0]
    values = temperature.detach().to(dtype)
    values = values.unsqueeze(-1) if values.dim() == 1 and values.shape[0] == ids.shape[0] != 1 else values
    return values.expand(ids.shape).contiguous()


def prepare_tokens(
    given: TokenArguments,
    cu_seqlens: Tensor | None,
    max_seqlen: int | None,
    dtype: torch.dtype,
    config: GRPOLossConfig,
) -> Tokens:
    """The arguments of a loss, once their shapes are checked, as ``Tokens``."""
    layout: Layout = Padded()
    active = torch.ones_like(given.ids, dtype=torch.bool) if given.mask is None else given.mask != 0
    if cu_seqlens is not None:
        assert max_seqlen is not None
        layout = packed_layout(cu_seqlens, given.ids.shape[0], max_seqlen)
    per_token_shape = given.ids.shape

    def padded(values: Tensor) -> Tensor:
        """Per-token values as [B, T], per-sequence ones as [B, 1]."""
        if values.shape == per_token_shape:
            return layout.tokens(values)
        return values.unsqueeze(-1) if values.dim() == 1 else values

    active = padded(active)
    inactive = ~active

    def per_token(values: Tensor | None) -> Tensor | None:
        return None if values is None else padded(values.detach().to(dtype)).masked_fill(inactive, 0.0)

    token_weights = given.token_weights
    if token_weights is not None:
        token_weights = padded(token_weights.detach().to(dtype))
        if config.loss_type == "vespo":
            # vespo, as TRL defines it, reads the weights of masked tokens too; padding that we add must not count.
            if isinstance(layout, Packed) and token_weights.shape == active.shape:
                token_weights = token_weights.masked_fill(~layout.exists, 1.0)
        elif token_weights.shape == active.shape:
            token_weights = token_weights.masked_fill(inactive, 0.0)
    return Tokens(
        padded(given.ids.to(torch.int64)).masked_fill(inactive, 0),
        active,
        active.to(dtype),
        padded(given.advantages.detach().to(dtype)),
        per_token(given.old_logps),
        per_token(given.ref_logps),
        token_weights,
        None if given.temperatures is None else padded(given.temperatures.detach().to(dtype)),
        layout,
    )


def as_number(num_items_in_batch: Tensor | float | None, like: Tensor) -> Tensor | float | None:
    """The count as a Python number, or as a 0-d tensor in the dtype of ``like``."""
    if isinstance(num_items_in_batch, Tensor):
        return num_items_in_batch.detach().reshape(()).to(like.device, like.dtype)
    return num_items_in_batch


def _in_two_launches(
    logits: Tensor, tokens: Tokens, num_items_in_batch: Tensor | float | None, config: GRPOLossConfig, backend: str
) -> tuple[Tensor, Tensor, Tensor, TokenLoss]:
    """For objectives that need the whole sequence: fused log-probabilities, and autograd over [B, T] tensors."""
    rows = ops.token_stats(
        logits,
        tokens.row_values(tokens.ids),
        tokens.row_values(tokens.active),
        tokens.row_temperature(config),
        backend,
    )
    logps, entropy = (tokens.layout.tokens(values) for values in rows[:2])
    result = per_token_loss(
        logps, tokens.advantages, tokens.mask, config, tokens.old_logps, tokens.ref_logps, tokens.token_weights
    )
    return total_loss(result.loss, entropy, tokens.mask, config, num_items_in_batch), logps, entropy, result


def _in_one_launch(
    logits: Tensor,
    tokens: Tokens,
    num_items_in_batch: Tensor | float | None,
    config: GRPOLossConfig,
    backend: str,
    overwrite_logits: bool,
) -> tuple[Tensor, Tensor, Tensor, TokenLoss]:
    """For token-level objectives: one kernel does everything."""
    # A traced graph keeps its tensors: there the compiler decides what is overwritten. Without a gradient to compute
    # the logits stay as they are.
    overwrite = (
        overwrite_logits and logits.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    )
    if overwrite:
        check_may_be_overwritten(logits)
    weights = row_weights(config, tokens.mask, num_items_in_batch)
    bonus = entropy_weights(config, tokens.mask) if config.entropy_coef != 0.0 else None
    scale = half_precision_scale(logits.dtype, weights) if overwrite else 1.0
    losses, kl, ratio, logps, entropy = (_OverwritingRows.apply if overwrite else _fused_rows)(
        logits,
        tokens.row_values(tokens.ids),
        tokens.row_values(tokens.active),
        tokens.row_values(tokens.advantages),
        tokens.row_values(tokens.old_logps),
        tokens.row_values(tokens.ref_logps),
        tokens.row_values(tokens.token_weights),
        tokens.row_values(weights * scale),
        None if bonus is None else tokens.row_values(bonus * scale),
        tokens.row_values(tokens.temperatures),
        *ops.row_options(config, backend),
    )
    return row_results(losses / scale, kl, ratio, logps, entropy, tokens)


def half_precision_scale(dtype: torch.dtype, weights: Tensor) -> Tensor | float:
    """What a gradient that is rounded to ``dtype`` before its upstream factor arrives is multiplied with meanwhile.

    float16 ends at 6e-8, which a weight of one token among thousands times a small probability falls below: the power
    of two that brings the largest weight to about 1. Other dtypes reach far enough.
    """
    if dtype != torch.float16:
        return 1.0
    _, exponent = torch.frexp(weights.max() if weights.numel() else weights.new_zeros(()))
    return torch.ldexp(weights.new_ones(()), -exponent)


def row_results(
    losses: Tensor, kl: Tensor, ratio: Tensor, logps: Tensor, entropy: Tensor, tokens: Tokens
) -> tuple[Tensor, Tensor, Tensor, TokenLoss]:
    """``(loss, logps, entropy, per-token results)``, [B, T], from what the row operations return."""
    padded = tokens.layout.tokens
    result = TokenLoss(losses, padded(ratio), None if tokens.ref_logps is None else padded(kl), None)
    return losses.sum(), padded(logps), padded(entropy), result


def loss_output(
    loss: Tensor, logps: Tensor, entropy: Tensor, result: TokenLoss, tokens: Tokens, config: GRPOLossConfig
) -> GRPOLossOutput:
    """Detached per-token values, with defaults at inactive tokens, and metrics."""
    inactive = ~tokens.active

    def detached(values: Tensor, default: float = 0.0) -> Tensor:
        values = values.detach().to(tokens.mask.dtype)
        return values.masked_fill(inactive, default) if values.shape == inactive.shape else values

    ratio, entropy = detached(result.ratio, 1.0), detached(entropy)
    kl = None if result.kl is None else detached(result.kl)
    metrics = loss_metrics(loss.detach(), ratio, entropy, kl, result.phi, tokens.advantages, tokens.mask, config)
    given = tokens.layout.as_given
    kl = None if kl is None else given(kl)
    return GRPOLossOutput(loss, given(detached(logps)), given(entropy), kl, given(ratio), metrics)


def _fused_rows(*arguments):
    loss, _, kl, ratio, logps, entropy, *_ = ops.grpo_rows(*arguments)
    return loss, kl, ratio, logps, entropy


class _OverwritingRows(torch.autograd.Function):
    """``_fused_rows`` whose forward turns the logits into the gradient and whose backward only scales it."""

    @staticmethod
    def forward(ctx, logits, *arguments):
        ctx.backend = arguments[10]
        loss, _, kl, ratio, logps, entropy, *_ = ops.grpo_rows_(logits, *arguments)
        ctx.save_for_backward(logits)
        mark_overwritten(logits)
        ctx.mark_non_differentiable(kl, ratio, logps, entropy)
        return loss, kl, ratio, logps, entropy

    @staticmethod
    def backward(ctx, grad_loss, *_):
        ops.refuse_second_derivatives()
        (logits,) = ctx.saved_tensors
        grad = logits.detach()
        ops.scale_rows_(grad, grad_loss.contiguous(), ctx.backend)
        mark_overwritten(logits)
        return grad, *[None] * 14
