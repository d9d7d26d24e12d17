"""A fused, exact, memory-bounded GRPO loss for PyTorch."""

from .config import GRPOLossConfig
from .losses import GRPOLossOutput, grpo_loss, token_logps

__all__ = ["GRPOLossConfig", "GRPOLossOutput", "grpo_loss", "token_logps"]
