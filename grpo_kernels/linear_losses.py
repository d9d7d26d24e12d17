"""The public functions that start from hidden states: no tensor of the size of the logits exists."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import ops
from .backend import choose_backend
from .checks import (
    TokenArguments,
    check_cu_seqlens,
    check_head,
    check_logits_and_ids,
    check_loss_arguments,
    check_ref_hidden,
    check_temperature,
    check_values,
)
from .config import GRPOLossConfig
from .linear import chunk_rows
from .linear_ops import KeptLogps, LinearRows, RecomputedLogps
from .losses import (
    GRPOLossOutput,
    Tokens,
    as_number,
    half_precision_scale,
    loss_output,
    prepare_tokens,
    row_results,
    row_temperature,
)
from .objective import TokenLoss, entropy_weights, per_token_loss, row_weights, total_loss
from .rows import needed_rows
from .torch_rows import compute_dtype


def linear_grpo_loss(
    hidden: Tensor,
    weight: Tensor,
    completion_ids: Tensor,
    advantages: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    completion_mask: Tensor | None = None,
    old_logps: Tensor | None = None,
    ref_logps: Tensor | None = None,
    ref_hidden: Tensor | None = None,
    token_weights: Tensor | None = None,
    temperatures: Tensor | None = None,
    num_items_in_batch: Tensor | float | None = None,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    all_metrics: bool = False,
    chunk_bytes: int | None = None,
    round_logits: bool = False,
    backend: str | None = None,
    config: GRPOLossConfig = GRPOLossConfig(),  # noqa: B008 (frozen)
) -> GRPOLossOutput:
    """``grpo_loss`` of the logits ``softcap(logit_scale * (hidden @ weight.T + bias))``, which are never held whole.

    The gradients are computed in the forward pass, a chunk of tokens at a time. Masked tokens are never multiplied with
    the head. With beta = 0 and no entropy bonus, neither are tokens whose advantage or token weight is 0: their
    gradient is 0. A frozen head (``weight.requires_grad`` is False) gets no gradient and costs nothing.

    Args:
        hidden: [B, T, D], float32, bfloat16, float16 or float64: the hidden state before each token.
        weight: [V, D], of the same dtype and device; may be tied or trainable.
        bias: [V] or None.
        softcap: ``c`` of ``c * tanh(x / c)`` (Gemma 2), > 0, or None.
        logit_scale: > 0 (Cohere's logit_scale; 1 / logits_scaling of Granite).
        ref_hidden: [B, T, D], the reference's hidden states, in place of ``ref_logps``: its log-probabilities go the
            way of the policy's, through the same head (LoRA: the same model, adapter switched off).
        all_metrics: compute the tokens without gradient too, so that log-probabilities and metrics cover every
            unmasked token. ``metrics["metric_tokens"]`` is the number of tokens that they cover.
        chunk_bytes: bytes of logits, and of their gradient where that has another dtype, held at a time; None: what
            suits the device.
        round_logits: round the logits to the dtype of ``hidden`` on their way to the log-sum-exp, as a model's own head
            does: less memory traffic, less exact log-probabilities. By default they stay float32.
        completion_ids and the others: as for ``grpo_loss``. With ``cu_seqlens`` hidden is [N, D].

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    check_head(hidden, weight, bias, softcap, logit_scale, chunk_bytes, round_logits)
    given = TokenArguments(
        completion_ids, advantages, completion_mask, old_logps, ref_logps, token_weights, temperatures
    )
    check_logits_and_ids(hidden, completion_ids, "completion_ids", "hidden", "D", packed=cu_seqlens is not None)
    if ref_hidden is not None:
        check_ref_hidden(ref_hidden, hidden, ref_logps)
    has_reference = ref_logps is not None or ref_hidden is not None
    if cu_seqlens is not None:
        max_seqlen = check_cu_seqlens(cu_seqlens, max_seqlen, completion_ids)
    check_loss_arguments(given, num_items_in_batch, config, has_reference, cu_seqlens)
    backend = choose_backend(backend, hidden)
    tokens = prepare_tokens(given, cu_seqlens, max_seqlen, compute_dtype(hidden), config)
    num_items_in_batch = as_number(num_items_in_batch, tokens.mask)
    check_values(
        given.ids, "completion_ids", weight.shape[0], given.mask, tokens.advantages, num_items_in_batch, temperatures
    )
    if cu_seqlens is not None:
        hidden = hidden.unsqueeze(0)
        ref_hidden = None if ref_hidden is None else ref_hidden.unsqueeze(0)
    needed = tokens.active if all_metrics else needed_rows(tokens, config)
    head = HeadPass(weight, bias, softcap or 0.0, logit_scale, chunk_bytes, round_logits, backend)
    if backend == "eager":
        raise ValueError("backend is 'eager'; allowed: torch, triton (for eager, pass the logits to grpo_loss)")
    if ref_hidden is not None:
        with torch.no_grad():
            ref_logps, _ = _token_logps(ref_hidden, head, tokens, needed, config, False)
        tokens = tokens._replace(ref_logps=ref_logps)
    route = _by_logps if config.needs_whole_sequence else _by_rows
    loss, logps, entropy, result = route(hidden, head, tokens, needed, num_items_in_batch, config)
    computed = tokens._replace(active=needed, mask=needed.to(tokens.mask.dtype))
    output = loss_output(loss, logps, entropy, result, computed, config)
    output.metrics["metric_tokens"] = needed.sum()
    return output


def linear_token_logps(
    hidden: Tensor,
    weight: Tensor,
    ids: Tensor,
    temperature: float | Tensor = 1.0,
    return_entropy: bool = False,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    chunk_bytes: int | None = None,
    round_logits: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """``token_logps`` of the logits ``softcap(logit_scale * (hidden @ weight.T + bias))``, which are never held whole.

    Differentiable for any loss of the caller's. With a frozen head and without entropies the forward pass keeps
    dlogp/dhidden ([B, T, D]), and backward only scales it; otherwise backward computes the chunks again.

    Args:
        hidden: [B, T, D] (or [N, D]); weight: [V, D]; ids: [B, T] (or [N]); the head as for ``linear_grpo_loss``;
            the temperature as for ``token_logps``.
        mask: [B, T], the tokens to compute; the others give 0. None means all.

    Returns:
        logps [B, T], or ``(logps, entropy)``; float32 (float64 for float64 hidden states).

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    check_head(hidden, weight, bias, softcap, logit_scale, chunk_bytes, round_logits)
    packed = hidden.dim() == 2
    check_logits_and_ids(hidden, ids, "ids", "hidden", "D", packed)
    check_temperature(temperature, ids)
    backend = choose_backend(backend, hidden)
    temperatures = temperature if isinstance(temperature, Tensor) else None
    check_values(ids, "ids", weight.shape[0], mask, temperatures=temperatures)
    needed = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
    ids = ids.to(torch.int64).masked_fill(~needed, 0)
    if packed:
        hidden, ids, needed = hidden.unsqueeze(0), ids.unsqueeze(0), needed.unsqueeze(0)
    head = HeadPass(weight, bias, softcap or 0.0, logit_scale, chunk_bytes, round_logits, backend)
    temperature = row_temperature(temperature, ids, compute_dtype(hidden))
    logps, entropy = _logps(hidden, head, ids, needed, temperature, return_entropy)
    if packed:
        logps, entropy = logps.squeeze(0), entropy.squeeze(0)
    return (logps, entropy) if return_entropy else logps


class HeadPass(NamedTuple):
    """A head, checked, and how it is multiplied with."""

    weight: Tensor
    bias: Tensor | None
    softcap: float
    logit_scale: float
    chunk_bytes: int | None
    round_logits: bool
    backend: str

    def wanted(self, hidden: Tensor) -> list[bool]:
        """Whether hidden states, weight and bias need a gradient."""
        tensors = (hidden, self.weight, self.bias)
        return [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in tensors]

    def rows(self, hidden: Tensor) -> int:
        """Rows of a chunk."""
        with_grad = any(self.wanted(hidden))
        return chunk_rows(hidden, self.weight.shape[0], with_grad, self.chunk_bytes, self.round_logits)

    def numbers(self) -> Tensor:
        return ops.number_tensor(self.softcap, self.logit_scale)


def _by_rows(
    hidden: Tensor,
    head: HeadPass,
    tokens: Tokens,
    needed: Tensor,
    num_items_in_batch: Tensor | float | None,
    config: GRPOLossConfig,
) -> tuple[Tensor, Tensor, Tensor, TokenLoss]:
    """Token-level objectives: loss and gradient of a chunk before the next."""
    weights = row_weights(config, tokens.mask, num_items_in_batch)
    bonus = entropy_weights(config, tokens.mask) if config.entropy_coef != 0.0 else None
    scale = half_precision_scale(hidden.dtype, weights)
    numbers, *options = ops.row_options(config, head.backend)
    losses, kl, ratio, logps, entropy = LinearRows.apply(
        hidden,
        head.weight,
        head.bias,
        tokens.row_values(tokens.ids),
        tokens.row_values(needed),
        tokens.row_values(tokens.advantages),
        tokens.row_values(tokens.old_logps),
        tokens.row_values(tokens.ref_logps),
        tokens.row_values(tokens.token_weights),
        tokens.row_values(weights * scale),
        None if bonus is None else tokens.row_values(bonus * scale),
        tokens.row_values(tokens.temperatures),
        numbers,
        head.numbers(),
        head.rows(hidden),
        head.round_logits,
        head.wanted(hidden),
        *options,
    )
    return row_results(losses / scale, kl, ratio, logps, entropy, tokens)


def _by_logps(
    hidden: Tensor,
    head: HeadPass,
    tokens: Tokens,
    needed: Tensor,
    num_items_in_batch: Tensor | float | None,
    config: GRPOLossConfig,
) -> tuple[Tensor, Tensor, Tensor, TokenLoss]:
    """Objectives that need the whole sequence: log-probabilities first, then autograd over [B, T] tensors."""
    with_entropy = config.entropy_coef != 0.0
    logps, entropy = _token_logps(hidden, head, tokens, needed, config, with_entropy)
    result = per_token_loss(
        logps,
        tokens.advantages,
        needed.to(tokens.mask.dtype),
        config,
        tokens.old_logps,
        tokens.ref_logps,
        tokens.token_weights,
    )
    losses = result.loss.masked_fill(~needed, 0.0)
    return total_loss(losses, entropy, tokens.mask, config, num_items_in_batch), logps, entropy, result


def _token_logps(
    hidden: Tensor,
    head: HeadPass,
    tokens: Tokens,
    needed: Tensor,
    config: GRPOLossConfig,
    differentiable_entropy: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the tokens, [B, T]."""
    rows, row_needed = tokens.row_values(tokens.ids), tokens.row_values(needed)
    assert rows is not None and row_needed is not None
    logps, entropy = _logps(hidden, head, rows, row_needed, tokens.row_temperature(config), differentiable_entropy)
    return tokens.layout.tokens(logps), tokens.layout.tokens(entropy)


def _logps(
    hidden: Tensor,
    head: HeadPass,
    ids: Tensor,
    needed: Tensor,
    temperature: Tensor,
    differentiable_entropy: bool,
) -> tuple[Tensor, Tensor]:
    wanted = head.wanted(hidden)
    keeps_derivative = wanted == [True, False, False] and not differentiable_entropy
    function = KeptLogps if keeps_derivative else RecomputedLogps
    return function.apply(
        hidden, head.weight, head.bias, ids, needed, temperature, head.numbers(), head.rows(hidden), head.round_logits,
        wanted, head.backend,
    )  # fmt: skip
