"""Which tokens have to be computed at all."""

from __future__ import annotations

from torch import Tensor

from .config import GRPOLossConfig
from .losses import Tokens


def needed_rows(tokens: Tokens, config: GRPOLossConfig) -> Tensor:
    """The tokens that can have a gradient: [B, T], bool.

    All unmasked ones, if there is a KL term or an entropy bonus. Otherwise those whose advantage and token weight are
    not 0; where a token's coefficient depends on its sequence, all tokens of the sequences that have such an advantage.
    """
    if config.beta != 0.0 or config.entropy_coef != 0.0:
        return tokens.active
    has_advantage = tokens.advantages != 0
    if config.needs_whole_sequence:
        return tokens.active & has_advantage.any(-1, keepdim=True)
    if tokens.token_weights is not None:
        has_advantage = has_advantage & (tokens.token_weights != 0)
    return tokens.active & has_advantage
