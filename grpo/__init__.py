"""LoRA GRPO for causal language models with verifiable rewards.

    grpo train                                              the embedded default, on a CPU, in minutes
    grpo train --model M --data FILE.jsonl --reward numeric any transformers causal LM

Importing this package loads neither torch nor transformers; the names below load what they need when they
are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.advantages import group_advantages
    from grpo.callbacks import Callback
    from grpo.config import TrainConfig
    from grpo.groups import Completion, Group, Task
    from grpo.run import build, train
    from grpo.trainer import GRPOTrainer, Result

__all__ = [
    "Callback",
    "Completion",
    "GRPOTrainer",
    "Group",
    "Result",
    "Task",
    "TrainConfig",
    "build",
    "group_advantages",
    "train",
]

_HOMES = {
    "Callback": "grpo.callbacks",
    "Result": "grpo.trainer",
    "build": "grpo.run",
    "Completion": "grpo.groups",
    "Group": "grpo.groups",
    "Task": "grpo.groups",
    "TrainConfig": "grpo.config",
    "GRPOTrainer": "grpo.trainer",
    "group_advantages": "grpo.advantages",
    "train": "grpo.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'grpo' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
