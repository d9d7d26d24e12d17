"""How the loss and the log-probabilities of a batch are computed: from hidden states, or from logits.

linear  hidden states and the head, joined in chunks: no tensor of the size of the logits exists
logits  the model's logits, fused loss
eager   the model's logits, plain autograd: the definition of correct
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from grpo.batch import Batch
from grpo.errors import InputError
from grpo.policy import Policy
from grpo.sampler import Sampling, pack_support, support, unpack_support
from grpo_kernels import (
    UnsupportedHeadError,
    grpo_loss,
    linear_grpo_loss,
    linear_token_logps,
    matches_model_logits,
    token_logps,
)
from grpo_kernels.losses import GRPOLossOutput


def choose_loss_path(requested: str, policy: Policy) -> tuple[str, str | None]:
    """(path, why it is not the linear one): `auto` is linear, or logits where the model's head does not allow it.

    Raises InputError if the linear path is asked for and the head does not allow it.
    """
    if requested not in ("auto", "linear"):
        return requested, None
    reason = why_not_linear(policy)
    if reason is None:
        return "linear", None
    if requested == "linear":
        raise InputError(f"--loss-path linear: {reason}; give --loss-path logits")
    return "logits", reason


def why_not_linear(policy: Policy) -> str | None:
    """What keeps the model's logits from being its hidden states times its head, or None."""
    try:
        if matches_model_logits(policy.model):
            return None
    except UnsupportedHeadError as error:
        return str(error)
    name = type(policy.model.get_base_model()).__name__
    return f"the logits of {name} are not those of its hidden states and its head alone"


def batch_loss(policy: Policy, batch: Batch, path: str, **options: Any) -> GRPOLossOutput:
    """The loss of a batch, with log-probabilities, metrics and ratios of every completion token.

    `path` is linear, logits or eager; the options are those that `grpo_loss` and `linear_grpo_loss` share, without
    those that are in the batch.
    """
    options["completion_mask"] = batch.completion_mask
    for name in ("temperatures", "old_logps", "ref_logps", "token_weights"):
        options[name] = getattr(batch, name)
    if path == "linear":
        head = policy.head()
        return linear_grpo_loss(
            policy.hidden_states(batch),
            head.weight,
            batch.completion_ids,
            batch.advantages,
            all_metrics=True,
            **head.options,
            **options,
        )
    logits = on_support(policy.logits(batch), batch)
    return grpo_loss(logits, batch.completion_ids, batch.advantages, backend=_backend(path), **options)


def batch_logps(policy: Policy, batch: Batch, path: str, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, entropies) [B, T] of the completions, on the same numeric route as the loss."""
    scale = temperature if batch.temperatures is None else batch.temperatures
    if path == "linear":
        head = policy.head()
        result = linear_token_logps(
            policy.hidden_states(batch),
            head.weight,
            batch.completion_ids,
            scale,
            return_entropy=True,
            mask=batch.completion_mask,
            **head.options,
        )
    else:
        logits = on_support(policy.logits(batch), batch)
        result = token_logps(logits, batch.completion_ids, scale, return_entropy=True, backend=_backend(path))
    assert isinstance(result, tuple)
    return result


def on_support(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The logits, -inf at tokens that the sampler could not have drawn, where that is known."""
    if batch.support is None:
        return logits
    return logits.masked_fill(~unpack_support(batch.support, logits.shape[-1]), -torch.inf)


def sampler_support(policy: Policy, batch: Batch, sampling: Sampling) -> torch.Tensor:
    """[B, T, ceil(V / 8)], packed: the tokens that the sampler could have drawn, those that it drew included."""
    with torch.no_grad():
        logits = policy.logits(batch)
        if batch.temperatures is not None:
            logits = logits / batch.temperatures[:, None, None]
            sampling = dataclasses.replace(sampling, temperature=1.0)
        return pack_support(support(logits, sampling, batch.completion_ids))


def _backend(path: str) -> str | None:
    return "eager" if path == "eager" else None
