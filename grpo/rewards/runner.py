"""Rewards on completions: what they return is checked, and one that fails on a sample leaves its siblings alone."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo.errors import InputError
from grpo.groups import Completion, Task
from grpo.rewards.reward import Reward


@dataclass(frozen=True)
class Failure:
    """A verdict that is missing because its reward failed. `sample` is a place among the completions."""

    reward: str
    sample: int
    reason: str


@dataclass(frozen=True)
class Scores:
    """`rows`: a row a completion, a column a reward, None for no verdict. `parts`: what a verdict is made of, by name,
    for each completion. `failures`: why verdicts are missing."""

    rows: list[tuple[float | None, ...]]
    parts: list[dict[str, float | None]]
    failures: list[Failure]


class RewardRunner:
    """Judges completions. `on_error`: a reward that fails on a sample gives it no verdict ("none"), or ends the run
    with an InputError ("stop")."""

    def __init__(self, rewards: Sequence[Reward], on_error: str = "none") -> None:
        self.rewards = list(rewards)
        self.on_error = on_error

    def score(self, completions: Sequence[Completion]) -> Scores:
        """Raises InputError where a verdict is no finite number and not None, and what `on_error` says."""
        columns: list[list[float | None]] = []
        failures: list[Failure] = []
        for reward in self.rewards if completions else ():
            values, failed = self._column(reward, completions)
            columns.append(values)
            failures += failed
        rows = list(zip(*columns, strict=True)) if columns else []
        return Scores(rows, [{} for _ in completions], failures)

    def _column(self, reward: Reward, completions: Sequence[Completion]) -> tuple[list[float | None], list[Failure]]:
        """All at once; where that fails, one by one, to find out on which."""
        try:
            return checked(reward, call(reward, completions), completions), []
        except InputError:
            raise
        except Exception as error:
            if self.on_error == "stop":
                raise InputError(f"reward {reward.name} failed: {reason_of(error)}") from error
        values: list[float | None] = []
        failures = []
        for number, completion in enumerate(completions):
            try:
                values += checked(reward, call(reward, [completion]), [completion])
            except InputError:
                raise
            except Exception as error:
                values.append(None)
                failures.append(Failure(reward.name, number, reason_of(error)))
        return values, failures

    def close(self) -> None:
        """Nothing is left to end: rewards that start processes end them."""


class WrongCount(ValueError):
    """A reward returned something else than one value a completion."""


def call(reward: Reward, completions: Sequence[Completion]) -> object:
    """What the reward's function returns; one that is async is waited for."""
    tasks = [completion.task for completion in completions]
    names = dict.fromkeys(name for task in tasks for name in task.columns)
    result = reward.function(
        prompts=[task.prompt for task in tasks],
        completions=[completion.text for completion in completions],
        completion_ids=[list(completion.ids) for completion in completions],
        **{name: [task.columns.get(name) for task in tasks] for name in names},
    )
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


def checked(reward: Reward, values: object, completions: Sequence[Completion]) -> list[float | None]:
    """Raises WrongCount, or InputError naming the function and the sample whose verdict is no finite number."""
    if not isinstance(values, list) or len(values) != len(completions):
        got = f"{len(values)} values" if isinstance(values, list) else f"a {type(values).__name__}"
        raise WrongCount(
            f"reward {reward.name} returned {got} for {len(completions)} completions: it must return a list of one each"
        )
    return [
        None if value is None else _number(reward, value, number, completion.task)
        for number, (value, completion) in enumerate(zip(values, completions, strict=True))
    ]


def reason_of(error: Exception) -> str:
    """One line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _number(reward: Reward, value: Any, number: int, task: Task) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__") or not math.isfinite(float(value)):
        raise InputError(
            f"reward {reward.name} returned {value!r} for sample {number} ({task.id}): it must be a finite number or "
            "None"
        )
    return float(value)


async def _awaited(result: Any) -> Any:
    return await result
