"""The optimizer of the adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from grpo.config import TrainConfig
from grpo.errors import InputError


def make_optimizer(config: TrainConfig, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW, fused on a GPU, or bitsandbytes' with 8-bit states. Raises InputError where that is not installed."""
    options: dict[str, Any] = {
        "lr": config.learning_rate,
        "betas": (config.adam_beta1, config.adam_beta2),
        "weight_decay": config.weight_decay,
    }
    if config.optim == "adamw_8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise InputError("--optim adamw_8bit needs bitsandbytes: pip install 'grpo-kernels[4bit]'") from error
        return AdamW8bit(parameters, **options)
    return torch.optim.AdamW(parameters, fused=parameters[0].device.type == "cuda", **options)
