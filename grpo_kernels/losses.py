"""The public functions: check, dispatch to a backend, and put the results together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import ops
from .backend import choose_backend
from .checks import check_logits_and_ids, check_loss_arguments, check_temperature, check_values
from .config import GRPOLossConfig
from .metrics import loss_metrics
from .objective import entropy_weights, per_token_loss, row_weights
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

    No tensor of the size of the logits is allocated: backward writes the gradient over the logits. Using the same
    logits a second time in autograd after that raises its in-place error. Logits that are a leaf, or a view
    of one, keep their values, and their gradient gets memory of its own.

    Args:
        logits: [B, T, V], float32, bfloat16, float16 or float64, any strides (``logits[:, -T-1:-1]`` is not copied);
            row t predicts token t of the completion. Arithmetic is float32 (float64 for float64 logits).
            Values of -inf are probability 0.
        completion_ids: [B, T], int64 or int32; anything where the mask is 0.
        advantages: [B], [B, 1] or [B, T], finite.
        completion_mask: [B, T], bool or 0/1: the tokens that count; None means all.
        old_logps: [B, T], log-probabilities under the policy that sampled, at the same temperature. None means that
            this policy sampled them: the ratio is exactly 1 and carries the gradient.
        ref_logps: [B, T], log-probabilities under the reference; required when ``config.beta`` is not 0.
        token_weights: [B, T] or [B, 1], multiplied into the policy term (importance-sampling correction, masks).
        num_items_in_batch: tokens in the whole accumulated batch, for dapo, cispo and vespo; None means this call's.
        overwrite_logits: the caller owns the logits and will not read them again: the gradient replaces them during
            the forward pass, which saves reading them again in backward.
        backend: "triton", "torch" or "eager"; None chooses by device, or by ``GRPO_KERNELS_BACKEND``.
        config: the objective.

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    check_logits_and_ids(logits, completion_ids, "completion_ids")
    check_loss_arguments(
        logits, advantages, completion_mask, old_logps, ref_logps, token_weights, num_items_in_batch, config
    )
    backend = choose_backend(backend, logits)
    batch, length = completion_ids.shape
    dtype = compute_dtype(logits)
    active = (
        torch.ones_like(completion_ids, dtype=torch.bool) if completion_mask is None else completion_mask.detach() != 0
    )
    check_values(completion_ids, "completion_ids", logits.shape[-1], active, advantages)

    def per_token(values: Tensor | None) -> Tensor | None:
        """[B, T], contiguous, in the compute dtype, 0 where inactive: what is there may be anything, NaN too."""
        if values is None:
            return None
        return values.detach().to(dtype).expand(batch, length).masked_fill(~active, 0.0)

    ids = completion_ids.to(torch.int64).masked_fill(~active, 0)
    advantages = advantages.detach().to(dtype)
    advantages = advantages.unsqueeze(-1) if advantages.dim() == 1 else advantages
    old_logps, ref_logps = per_token(old_logps), per_token(ref_logps)
    if token_weights is not None:
        token_weights = token_weights.detach().to(dtype)
    mask = active.to(dtype)

    phi = None
    if backend == "eager":
        loss, logps, entropy, result = eager_grpo_loss(
            logits, ids, advantages, mask, config, old_logps, ref_logps, token_weights, num_items_in_batch
        )
        ratio, kl, phi = result.ratio, result.kl, result.phi
    elif config.needs_whole_sequence:
        logps, entropy, *_ = ops.token_stats(logits, ids, active, ops.number_tensor(config.temperature), backend)
        result = per_token_loss(logps, advantages, mask, config, old_logps, ref_logps, token_weights)
        loss = (row_weights(config, mask, num_items_in_batch) * result.loss).sum()
        if config.entropy_coef != 0.0:
            loss = loss - (entropy_weights(config, mask) * entropy).sum()
        ratio, kl, phi = result.ratio, result.kl, result.phi
    else:
        rows = _fused_rows if not _overwrites(logits, overwrite_logits) else _OverwritingRows.apply
        row_losses, kl, ratio, logps, entropy = rows(
            logits,
            ids,
            active,
            per_token(advantages),
            old_logps,
            ref_logps,
            per_token(token_weights),
            row_weights(config, mask, num_items_in_batch),
            entropy_weights(config, mask) if config.entropy_coef != 0.0 else None,
            *ops.row_options(config, backend),
        )
        loss = row_losses.sum()

    inactive = ~active
    logps = logps.detach().masked_fill(inactive, 0.0)
    entropy = entropy.detach().masked_fill(inactive, 0.0)
    ratio = ratio.detach()
    if ratio.shape == inactive.shape:
        ratio = ratio.masked_fill(inactive, 1.0)
    kl = None if kl is None or ref_logps is None else kl.detach().masked_fill(inactive, 0.0)
    metrics = loss_metrics(loss.detach(), ratio, entropy, kl, phi, advantages, mask, config)
    return GRPOLossOutput(loss, logps, entropy, kl, ratio, metrics)


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
    check_temperature(temperature)
    backend = choose_backend(backend, logits)
    active = torch.ones_like(ids, dtype=torch.bool)
    check_values(ids, "ids", logits.shape[-1], active, None)
    ids = ids.to(torch.int64)
    if backend == "eager":
        logps, entropy = eager_token_logps(logits, ids, temperature)
    else:
        logps, entropy, *_ = ops.token_stats(logits, ids.contiguous(), active, ops.number_tensor(temperature), backend)
    return (logps, entropy) if return_entropy else logps


def _overwrites(logits: Tensor, overwrite_logits: bool) -> bool:
    """A traced graph keeps its tensors: there the compiler decides what is overwritten."""
    return overwrite_logits and not torch.compiler.is_compiling()


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
        ctx.mark_non_differentiable(kl, ratio, logps, entropy)
        return loss, kl, ratio, logps, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, *_):
        (logits,) = ctx.saved_tensors
        grad = logits.detach()
        ops.scale_rows_(grad, grad_loss.contiguous(), ctx.backend)
        return grad, *[None] * 13
