"""A fused, exact, memory-bounded GRPO loss for PyTorch."""

from .config import GRPOLossConfig
from .heads import LMHead, UnsupportedHeadError, completion_hidden_states, find_lm_head, matches_model_logits
from .linear_losses import linear_grpo_loss, linear_token_logps
from .losses import GRPOLossOutput, grpo_loss, token_logps
from .token_weights import off_policy_sequence_mask, top_entropy_mask

__all__ = [
    "GRPOLossConfig",
    "GRPOLossOutput",
    "LMHead",
    "UnsupportedHeadError",
    "completion_hidden_states",
    "find_lm_head",
    "grpo_loss",
    "linear_grpo_loss",
    "linear_token_logps",
    "matches_model_logits",
    "off_policy_sequence_mask",
    "token_logps",
    "top_entropy_mask",
]
