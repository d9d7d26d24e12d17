"""What a reward returned, checked: a number, None for no verdict, or a total with the parts that it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.errors import InputError
from grpo.groups import Completion, Task
from grpo.rewards.reward import Reward


@dataclass(frozen=True)
class Verdict:
    """`total` is the reward, None for no verdict; `parts` is what it is made of, by name."""

    total: float | None
    parts: dict[str, float | None]


class WrongCount(ValueError):
    """A reward returned something else than one verdict a completion."""


def checked(reward: Reward, values: object, completions: Sequence[Completion]) -> list[Verdict]:
    """Raises WrongCount, or InputError naming the function and the sample whose verdict is no finite number, no None
    and no mapping of "total" and parts to such."""
    if not isinstance(values, list) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise WrongCount(
            f"reward {reward.name} returned {got} for {len(completions)} completions: it must return a list of one each"
        )
    return [
        _verdict(reward, value, number, completion.task)
        for number, (value, completion) in enumerate(zip(values, completions, strict=True))
    ]


def _verdict(reward: Reward, value: Any, number: int, task: Task) -> Verdict:
    if not isinstance(value, Mapping):
        return Verdict(_number(reward, value, number, task), {})
    if "total" not in value:
        raise InputError(
            f"reward {reward.name} returned parts without a total for sample {number} ({task.id}): "
            f"{', '.join(map(str, value)) or 'none'}"
        )
    found = {str(name): _number(reward, part, number, task) for name, part in value.items()}
    return Verdict(found.pop("total"), found)


def _number(reward: Reward, value: Any, number: int, task: Task) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) or not hasattr(value, "__float__") or not math.isfinite(float(value)):
        raise InputError(
            f"reward {reward.name} returned {value!r} for sample {number} ({task.id}): it must be a finite number or "
            "None"
        )
    return float(value)
