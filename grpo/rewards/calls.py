"""Calling a reward function on completions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.groups import Completion
from grpo.rewards.reward import Reward


class OverTime(Exception):
    """A call that took longer than it may."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"it took more than {limit_s:g} s")


def call(reward: Reward, completions: Sequence[Completion], limit_s: float | None = None) -> object:
    """What the reward's function returns; raises OverTime where one that is async waits longer than `limit_s` (s)."""
    return call_function(reward.function, arguments(completions), limit_s)


def arguments(completions: Sequence[Completion]) -> dict[str, list[Any]]:
    """A reward function's keyword arguments: prompts, completions, completion_ids and every column of the data."""
    tasks = [completion.task for completion in completions]
    names = dict.fromkeys(name for task in tasks for name in task.columns)
    return {name: [task.columns.get(name) for task in tasks] for name in names} | {
        "prompts": [task.prompt for task in tasks],
        "completions": [completion.text for completion in completions],
        "completion_ids": [list(completion.ids) for completion in completions],
    }


def call_function(function: Callable[..., Any], given: Mapping[str, Any], limit_s: float | None = None) -> object:
    """What the function returns; one that is async is waited for. Raises OverTime where that is over `limit_s` (s)."""
    result = function(**given)
    return asyncio.run(_awaited(result, limit_s)) if inspect.isawaitable(result) else result


async def _awaited(result: Any, limit_s: float | None) -> Any:
    task = asyncio.ensure_future(result)
    done, _ = await asyncio.wait([task], timeout=limit_s)
    if not done:
        raise OverTime(limit_s or 0.0)
    return task.result()
