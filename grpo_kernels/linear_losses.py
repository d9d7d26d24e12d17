"""The public functions that start from hidden states: no tensor of the size of the logits exists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

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
from .vocab_parallel import VocabShard, agreed_shard, local_head

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


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
    process_group: ProcessGroup | None = None,
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
        process_group: the processes that hold the vocabulary together: ``weight`` (and ``bias``) are this one's
            consecutive rows of it, those of the ranks one after the other, of any sizes. All other arguments are the
            same on every rank, and so are the results and the gradient of ``hidden``; a weight that is trained gets
            the gradient of its rows. Backward communicates too (run it on every rank) where the objective needs the
            whole sequence and a weight is trained or entropy is rewarded. A DTensor sharded on dimension 0 of a 1-d
            mesh says the same by itself.
        completion_ids and the others: as for ``grpo_loss``. With ``cu_seqlens`` hidden is [N, D].

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    weight, bias, group = local_head(weight, bias, process_group)
    check_head(hidden, weight, bias, softcap, logit_scale, chunk_bytes, round_logits, is_shard=group is not None)
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
    head = HeadPass(weight, bias, softcap or 0.0, logit_scale, chunk_bytes, round_logits, backend)
    if group is not None:
        count = num_items_in_batch if isinstance(num_items_in_batch, Tensor) else None
        exact, near = (given.ids, given.mask, cu_seqlens), (given.advantages, *given[3:], count)
        options = (config, all_metrics, None if count is not None else num_items_in_batch)
        head = head.shared(group, (hidden, ref_hidden), exact, near, options)
    check_values(
        given.ids, "completion_ids", head.vocabulary, given.mask, tokens.advantages, num_items_in_batch, temperatures
    )
    if cu_seqlens is not None:
        hidden = hidden.unsqueeze(0)
        ref_hidden = None if ref_hidden is None else ref_hidden.unsqueeze(0)
    needed = head.agreed(tokens.active if all_metrics else needed_rows(tokens, config))
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
    tiled: bool | None = False,
    process_group: ProcessGroup | None = None,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """``token_logps`` of the logits ``softcap(logit_scale * (hidden @ weight.T + bias))``, which are never held whole.

    Differentiable for any loss of the caller's. With a frozen head and without entropies the forward pass keeps
    dlogp/dhidden ([B, T, D]), and backward only scales it; otherwise backward computes the chunks again.

    Args:
        hidden: [B, T, D] (or [N, D]); weight: [V, D]; ids: [B, T] (or [N]); the head as for ``linear_grpo_loss``;
            the temperature as for ``token_logps``.
        mask: [B, T], the tokens to compute; the others give 0. None means all.
        tiled: True: one kernel in which the logits exist in registers only, without a gradient (old and reference
            passes). Its sums run in another order than those of ``linear_grpo_loss``, so that an on-policy ratio is 1
            within rounding, not exactly: hence False by default. None: the faster of the two, as measured once per
            GPU and head; where there is nothing to measure on, tiled for half precision up to 2048 dimensions.
        process_group: as for ``linear_grpo_loss``; backward communicates too, so that it has to run on every rank.

    Returns:
        logps [B, T], or ``(logps, entropy)``; float32 (float64 for float64 hidden states).

    Raises:
        TypeError, ValueError: an argument has a wrong type, shape, dtype, device or value; the message names it.
    """
    weight, bias, group = local_head(weight, bias, process_group)
    check_head(hidden, weight, bias, softcap, logit_scale, chunk_bytes, round_logits, is_shard=group is not None)
    packed = hidden.dim() == 2
    check_logits_and_ids(hidden, ids, "ids", "hidden", "D", packed)
    check_temperature(temperature, ids)
    backend = choose_backend(backend, hidden)
    temperatures = temperature if isinstance(temperature, Tensor) else None
    head = HeadPass(weight, bias, softcap or 0.0, logit_scale, chunk_bytes, round_logits, backend)
    if group is not None:
        options = (return_entropy, temperature if temperatures is None else None)
        head = head.shared(group, (hidden,), (ids, mask), (temperatures,), options)
    check_values(ids, "ids", head.vocabulary, mask, temperatures=temperatures)
    needed = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask != 0
    ids = ids.to(torch.int64).masked_fill(~needed, 0)
    if packed:
        hidden, ids, needed = hidden.unsqueeze(0), ids.unsqueeze(0), needed.unsqueeze(0)
    temperature = row_temperature(temperature, ids, compute_dtype(hidden))
    if takes_tiles(tiled, hidden, head):
        logps, entropy = tiled_logps(hidden, head, ids, needed, temperature)
    else:
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
    shard: VocabShard | None = None

    @property
    def vocabulary(self) -> int:
        """The number of tokens, those of other processes included."""
        return self.weight.shape[0] if self.shard is None else self.shard.vocabulary

    def shared(
        self,
        group: ProcessGroup,
        states: Sequence[Tensor | None],
        exact: Sequence[Tensor | None],
        near: Sequence[Tensor | None],
        options: object,
    ) -> HeadPass:
        """The head as a slice of one that the group holds; ``agreed_shard`` names the arguments."""
        if self.backend == "eager":
            raise ValueError("backend is 'eager', but the head is spread over processes; allowed there: torch, triton")
        if torch.compiler.is_compiling():
            raise ValueError(
                "process_group is given under torch.compile; allowed there: None (call this function outside the "
                "compiled one)"
            )
        assert states[0] is not None
        own = (self.chunk_bytes, self.round_logits, float(self.softcap), float(self.logit_scale))
        options = (self.wanted(states[0]), own, options)
        return self._replace(shard=agreed_shard(group, self.weight, states, exact, near, options))

    def agreed(self, needed: Tensor) -> Tensor:
        """The rows that any process of the group needs."""
        return needed if self.shard is None else self.shard.any(needed)

    def wanted(self, hidden: Tensor) -> list[bool]:
        """Whether hidden states, weight and bias need a gradient."""
        tensors = (hidden, self.weight, self.bias)
        return [torch.is_grad_enabled() and tensor is not None and tensor.requires_grad for tensor in tensors]

    def rows(self, hidden: Tensor) -> int:
        """Rows of a chunk."""
        with_grad = any(self.wanted(hidden))
        # As many on every process, however many columns each has: they reduce chunk by chunk.
        columns = self.weight.shape[0] if self.shard is None else self.shard.most_columns
        return chunk_rows(hidden, columns, with_grad, self.chunk_bytes, self.round_logits)

    def numbers(self) -> Tensor:
        return ops.number_tensor(self.softcap, self.logit_scale)


def takes_tiles(tiled: bool | None, hidden: Tensor, head: HeadPass) -> bool:
    """Whether ``tiled_logps`` is to be used; raises ValueError if it is asked for and cannot be."""
    if tiled not in (True, False, None):
        raise TypeError(f"tiled is {tiled!r}; allowed: True, False, None")
    obstacles = {
        f"the backend is {head.backend}, not triton": head.backend != "triton",
        "a gradient is needed": any(head.wanted(hidden)),
        "torch.compile is tracing": torch.compiler.is_compiling(),
        "round_logits is True": head.round_logits,
        "the head is spread over processes": head.shard is not None,
    }
    found = [reason for reason, is_there in obstacles.items() if is_there]
    if tiled and found:
        raise ValueError(f"tiled is True, but {found[0]}; allowed there: False, None")
    if tiled is not None or found:
        return bool(tiled)
    from .kernels.tiled import prefers_tiled

    def chunked(rows: Tensor) -> object:
        ids = torch.zeros(1, rows.shape[0], dtype=torch.int64, device=rows.device)
        return _logps(rows.unsqueeze(0), head, ids, ids == 0, ops.number_tensor(1.0)[0], False)

    return prefers_tiled(hidden.flatten(0, 1), head.weight, chunked)


def tiled_logps(
    hidden: Tensor, head: HeadPass, ids: Tensor, needed: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies [B, T] by the tiled kernel; 0 where they are not needed."""
    from .kernels.launch import HeadTransform
    from .kernels.tiled import tiled_token_stats

    rows = needed.flatten().nonzero().squeeze(-1)
    row_temperature = ops.as_temperature(temperature)
    if isinstance(row_temperature, Tensor):
        row_temperature = row_temperature.flatten()[rows]
    stats = tiled_token_stats(
        hidden.detach().flatten(0, 1).index_select(0, rows),
        head.weight.detach(),
        head.bias,
        ids.flatten()[rows],
        row_temperature,
        HeadTransform(head.softcap, head.logit_scale),
    )
    logps, entropy = torch.zeros(2, ids.numel(), device=ids.device).unbind()
    logps[rows], entropy[rows] = stats.logps, stats.entropy
    return logps.view(ids.shape), entropy.view(ids.shape)


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
        head.shard,
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
        wanted, head.backend, head.shard,
    )  # fmt: skip
