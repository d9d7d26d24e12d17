"""Calling a reward function on completions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo.groups import Completion
from grpo.rewards.reward import Reward


def call(reward: Reward, completions: Sequence[Completion]) -> object:
    """What the reward's function returns."""
    return call_function(reward.function, arguments(completions))


def arguments(completions: Sequence[Completion]) -> dict[str, list[Any]]:
    """A reward function's keyword arguments: prompts, completions, completion_ids and every column of the data."""
    tasks = [completion.task for completion in completions]
    names = dict.fromkeys(name for task in tasks for name in task.columns)
    return {name: [task.columns.get(name) for task in tasks] for name in names} | {
        "prompts": [task.prompt for task in tasks],
        "completions": [completion.text for completion in completions],
        "completion_ids": [list(completion.ids) for completion in completions],
    }


def call_function(function: Callable[..., Any], given: Mapping[str, Any]) -> object:
    """What the function returns; one that is async is waited for."""
    result = function(**given)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result
