"""The public functions: check, dispatch to a backend, and put the results together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from . import ops
from .backend import choose_backend
from .checks import check_logits_and_ids, check_loss_arguments, check_temperature, check_values
from .config import GRPOLossConfig
from .memory import check_may_be_overwritten, check_not_overwritten, mark_overwritten
from .metrics import loss_metrics
from .objective import TokenLoss, entropy_weights, per_token_loss, row_weights, total_loss
from .reference import eager_grpo_loss, eager_token_logps
from .torch_rows import compute_dtype


@dataclass(frozen=True)
class GRPOLossOutput:
    """What ``grpo_loss`` returns. Everything but ``loss`` is detached and is 0 (``ratio``: 1) at masked tokens.

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
    num_items_in_batch: Tensor | float | None = None,
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
        num_items_in_batch: tokens in the whole accumulated batch, for dapo, cispo and vespo: a number > 0, or a tensor
            that holds one; None means this call's.
        overwrite_logits: the caller owns the logits and will not read them again: the gradient replaces them during
            the forward pass, which saves reading them again in backward. Float16 logits under a loss scaler lose small
            gradients this way, because they are rounded before the scale arrives.
        backend: "triton", "torch" or "eager"; None chooses by device, or by ``GRPO_KERNELS_BACKEND``.
        config: the objective.

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    check_logits_and_ids(logits, completion_ids, "completion_ids")
    check_not_overwritten(logits)
    check_loss_arguments(
        logits,
        advantages,
        completion_mask,
        old_logps,
        ref_logps,
        token_weights,
        num_items_in_batch,
        config,
        has_reference=ref_logps is not None,
    )
    backend = choose_backend(backend, logits)
    active = torch.ones_like(completion_ids, dtype=torch.bool) if completion_mask is None else completion_mask != 0
    tokens = prepare_tokens(
        completion_ids, active, advantages, old_logps, ref_logps, token_weights, compute_dtype(logits), config
    )
    num_items_in_batch = as_number(num_items_in_batch, tokens.mask)
    check_values(
        completion_ids,
        "completion_ids",
        logits.shape[-1],
        active,
        tokens.advantages,
        completion_mask,
        num_items_in_batch,
    )
    if backend == "eager":
        loss, logps, entropy, result = eager_grpo_loss(
            logits, tokens.ids, tokens.advantages, tokens.mask, config,
            tokens.old_logps, tokens.ref_logps, tokens.token_weights, num_items_in_batch,
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
    temperature: float = 1.0,
    return_entropy: bool = False,
    *,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Log-probabilities of ``ids``, differentiable, in bounded memory: for old and reference passes, SFT, DPO, PPO.

    Backward writes the gradient over the logits, as for ``grpo_loss``.

    Args:
        logits: [B, T, V], float32, bfloat16, float16 or float64, any strides.
        ids: [B, T], int64 or int32, within the vocabulary.
        temperature: > 0; logits are divided by it.
        return_entropy: also return the entropies, in nats, differentiable.
        backend: as for ``grpo_loss``.

    Returns:
        logps [B, T], or ``(logps, entropy)``; float32 (float64 for float64 logits).

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    check_logits_and_ids(logits, ids, "ids")
    check_not_overwritten(logits)
    check_temperature(temperature)
    backend = choose_backend(backend, logits)
    active = torch.ones_like(ids, dtype=torch.bool)
    check_values(ids, "ids", logits.shape[-1], active, None)
    ids = ids.to(torch.int64)
    if backend == "eager":
        logps, entropy = eager_token_logps(logits, ids, temperature)
    else:
        logps, entropy, *_ = ops.token_stats(logits, ids.contiguous(), active, ops.number_tensor(temperature), backend)
    logps, entropy = (values.to(compute_dtype(logits)) for values in (logps, entropy))
    return (logps, entropy) if return_entropy else logps


class Tokens(NamedTuple):
    """What the loss knows of the tokens besides their logits, checked, detached and in the compute dtype.

    [B, T], but advantages and token weights may be [B, 1]. At inactive tokens ids, old and reference log-probabilities
    are 0, whatever the caller's padding held.
    """

    ids: Tensor
    active: Tensor
    mask: Tensor
    advantages: Tensor
    old_logps: Tensor | None
    ref_logps: Tensor | None
    token_weights: Tensor | None


def prepare_tokens(
    ids: Tensor,
    active: Tensor,
    advantages: Tensor,
    old_logps: Tensor | None,
    ref_logps: Tensor | None,
    token_weights: Tensor | None,
    dtype: torch.dtype,
    config: GRPOLossConfig,
) -> Tokens:
    """The arguments of a loss, once their shapes are checked, as ``Tokens``."""
    inactive = ~active

    def per_token(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.detach().to(dtype).masked_fill(inactive, 0.0)

    advantages = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    if token_weights is not None:
        token_weights = token_weights.detach().to(dtype)
        # vespo, as TRL defines it, reads the weights of masked tokens too.
        if token_weights.shape == active.shape and config.loss_type != "vespo":
            token_weights = token_weights.masked_fill(inactive, 0.0)
    return Tokens(
        ids.to(torch.int64).masked_fill(inactive, 0),
        active,
        active.to(dtype),
        advantages.detach().to(dtype),
        per_token(old_logps),
        per_token(ref_logps),
        token_weights,
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
    logps, entropy, *_ = ops.token_stats(
        logits, tokens.ids.contiguous(), tokens.active.contiguous(), ops.number_tensor(config.temperature), backend
    )
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

    def row_values(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.expand_as(tokens.ids).contiguous()

    # A traced graph keeps its tensors: there the compiler decides what is overwritten. Without a gradient to compute
    # the logits stay as they are.
    overwrite = (
        overwrite_logits and logits.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    )
    if overwrite:
        check_may_be_overwritten(logits)
    losses, kl, ratio, logps, entropy = (_OverwritingRows.apply if overwrite else _fused_rows)(
        logits,
        tokens.ids.contiguous(),
        tokens.active.contiguous(),
        row_values(tokens.advantages),
        row_values(tokens.old_logps),
        row_values(tokens.ref_logps),
        row_values(tokens.token_weights),
        row_weights(config, tokens.mask, num_items_in_batch).contiguous(),
        entropy_weights(config, tokens.mask).contiguous() if config.entropy_coef != 0.0 else None,
        *ops.row_options(config, backend),
    )
    return losses.sum(), logps, entropy, TokenLoss(losses, ratio, None if tokens.ref_logps is None else kl, None)


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
    return GRPOLossOutput(loss, detached(logps), entropy, kl, ratio, metrics)


def _fused_rows(*arguments):
    loss, _, kl, ratio, logps, entropy, *_ = ops.grpo_rows(*arguments)
    return loss, kl, ratio, logps, entropy


class _OverwritingRows(torch.autograd.Function):
    """``_fused_rows`` whose forward turns the logits into the gradient and whose backward only scales it."""

    @staticmethod
    def forward(ctx, logits, *arguments):
        ctx.backend = arguments[9]
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
        return grad, *[None] * 13
