"""The eager implementation: autograd through a plain log-softmax. It defines what correct means.

It holds several tensors of the size of the logits; use it to check, not to train.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .config import GRPOLossConfig
from .objective import TokenLoss, per_token_loss, total_loss


def eager_token_logps(logits: Tensor, ids: Tensor, temperature: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``ids`` and entropies at the temperature, [B, T] each, in the dtype of ``logits``.

    The temperature is a number, or one for each token: [B, T] or [B, 1].
    """
    if isinstance(temperature, Tensor) and temperature.dim():
        temperature = temperature.unsqueeze(-1)
    log_probs = torch.log_softmax(logits / temperature, dim=-1)
    logps = log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    probs = log_probs.exp()
    # A token of probability 0 adds nothing to the entropy, where 0 * -inf would be NaN.
    surprise = log_probs.masked_fill(log_probs == -torch.inf, 0.0)
    return logps, -(probs * surprise).sum(-1)


def eager_grpo_loss(
    logits: Tensor,
    ids: Tensor,
    advantages: Tensor,
    mask: Tensor,
    config: GRPOLossConfig,
    old_logps: Tensor | None = None,
    ref_logps: Tensor | None = None,
    token_weights: Tensor | None = None,
    num_items_in_batch: Tensor | float | None = None,
    temperatures: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, TokenLoss]:
    """The loss as written in the papers.

    Args:
        logits: [B, T, V]; ids: [B, T] within the vocabulary, also where the mask is 0.
        advantages: [B, 1] or [B, T]; mask: [B, T], floating; temperatures: [B, 1], instead of ``config.temperature``.

    Returns:
        ``(loss, logps, entropy, per-token results)``, all part of the autograd graph of ``logits``.
    """
    logps, entropy = eager_token_logps(logits, ids, config.temperature if temperatures is None else temperatures)
    token_loss = per_token_loss(logps, advantages, mask, config, old_logps, ref_logps, token_weights)
    loss = total_loss(token_loss.loss, entropy, mask, config, num_items_in_batch)
    return loss, logps, entropy, token_loss
