"""What a process does with a function of the user's own."""

from __future__ import annotations

import functools
from typing import Any

from grpo.rewards.adapters import adapted
from grpo.rewards.calls import call_function
from grpo.rewards.load import load_function

_loaded = functools.cache(load_function)


def judge(target: str, given: dict[str, list[Any]]) -> Any:
    """What the function returns, as plain JSON: numbers of other libraries become floats."""
    return plain(call_function(adapted(_loaded(target)), given))


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    return float(value) if hasattr(value, "__float__") and not isinstance(value, (bool, int, float)) else value
