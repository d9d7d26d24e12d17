"""Rewards: functions that judge completions, found by name, and the check of what they return.

A reward function is `f(prompts, completions, completion_ids=..., **columns) -> list[float | None]`. `prompts`
are as in the data (text or messages), `completions` are text, and every other column of the data comes as a
list of the same length under its own name. None means no verdict: the sample is left out of its group's
baseline and of the gradient.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo.errors import InputError
from grpo.groups import Completion, Task
from grpo.rewards.code import code_reward
from grpo.rewards.format import format_reward
from grpo.rewards.numeric import numeric_reward
from grpo.rewards.sql import sql_reward

RewardFunction = Callable[..., list[float | None]]
RESERVED_COLUMNS = ("prompts", "completions", "completion_ids")


@dataclass(frozen=True)
class Reward:
    """A reward function under its name. `version` changes when a completion may be judged differently."""

    name: str
    version: int
    function: RewardFunction

    @property
    def rule(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def columns(self) -> list[str]:
        """The data columns that the function cannot do without."""
        parameters = inspect.signature(self.function).parameters.values()
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [
            p.name for p in parameters
            if p.kind in kinds and p.default is p.empty and p.name not in RESERVED_COLUMNS
        ]  # fmt: skip


REWARDS = {
    reward.name: reward
    for reward in (
        Reward("numeric", 1, numeric_reward),
        Reward("format", 1, format_reward),
        Reward("code", 1, code_reward),
        Reward("sql", 1, sql_reward),
    )
}


def find_rewards(names: Sequence[str]) -> list[Reward]:
    """The rewards of these names."""
    for name in names:
        if name not in REWARDS:
            raise InputError(f"--reward {name}: there is no such reward; choose from {', '.join(sorted(REWARDS))}")
    return [REWARDS[name] for name in names]


def score(rewards: Sequence[Reward], completions: Sequence[Completion]) -> list[tuple[float | None, ...]]:
    """The verdict of every reward on every completion: one row a completion, one column a reward.

    Raises InputError naming the function and the sample where a verdict is not a finite number or None.
    """
    if not completions:
        return []
    tasks = [completion.task for completion in completions]
    columns = {name: [task.columns.get(name) for task in tasks] for name in tasks[0].columns}
    verdicts = [
        reward.function(
            prompts=[task.prompt for task in tasks],
            completions=[completion.text for completion in completions],
            completion_ids=[list(completion.ids) for completion in completions],
            **columns,
        )
        for reward in rewards
    ]
    for reward, values in zip(rewards, verdicts, strict=True):
        _check(reward.name, values, tasks)
    return [tuple(None if v is None else float(v) for v in row) for row in zip(*verdicts, strict=True)]


def _check(name: str, values: object, tasks: Sequence[Task]) -> None:
    if not isinstance(values, list) or len(values) != len(tasks):
        got = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise InputError(
            f"reward {name} returned {got} for {len(tasks)} completions: it must return a list of one each"
        )
    for number, (value, task) in enumerate(zip(values, tasks, strict=True)):
        if value is None:
            continue
        if isinstance(value, str) or not hasattr(value, "__float__") or not math.isfinite(float(value)):
            raise InputError(
                f"reward {name} returned {value!r} for sample {number} ({task.id}): it must be a finite number or None"
            )


@dataclass(frozen=True)
class Failure:
    reward: str
    sample: int
    reason: str


@dataclass(frozen=True)
class Scores:
    rows: list[tuple[float | None, ...]]
    parts: list[dict[str, float | None]]
    failures: list[Failure]


class RewardRunner:
    def __init__(self, rewards: Sequence[Reward], on_error: str = "none", timeout_s: float = 10.0) -> None:
        self.rewards = list(rewards)

    def score(self, completions: Sequence[Completion]) -> Scores:
        return Scores(score(self.rewards, completions), [{} for _ in completions], [])

    def close(self) -> None:
        pass
