"""Rewards: functions that judge completions, found by name, and the check of what they return.

A reward function is `f(prompts, completions, completion_ids=..., **columns) -> list[float | None]`. `prompts`
are as in the data (text or messages), `completions` are text, and every other column of the data comes as a
list of the same length under its own name. None means no verdict: the sample is left out of its group's
baseline and of the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpo.errors import InputError
from grpo.groups import Completion
from grpo.rewards import find
from grpo.rewards.calls import call
from grpo.rewards.choice import choice_reward
from grpo.rewards.code import code_reward
from grpo.rewards.format import format_reward
from grpo.rewards.gym import gym_reward
from grpo.rewards.json_schema import json_reward
from grpo.rewards.length import length_reward
from grpo.rewards.math import math_reward
from grpo.rewards.numeric import numeric_reward
from grpo.rewards.repetition import repetition_reward
from grpo.rewards.reward import RESERVED_COLUMNS, Reward, RewardFunction, own_reward
from grpo.rewards.runner import Failure, RewardRunner, Scores
from grpo.rewards.safety import safety_reward
from grpo.rewards.sql import sql_reward
from grpo.rewards.verdicts import WrongCount, checked

__all__ = [
    "RESERVED_COLUMNS",
    "REWARDS",
    "Failure",
    "Reward",
    "RewardFunction",
    "RewardRunner",
    "Scores",
    "find_rewards",
    "own_reward",
    "score",
]

REWARDS = {
    reward.name: reward
    for reward in (
        Reward("numeric", 1, numeric_reward, beside_sampling=True),
        Reward("format", 2, format_reward, beside_sampling=True),
        Reward("code", 1, code_reward, beside_sampling=True),
        Reward("sql", 1, sql_reward, beside_sampling=True),
        Reward("math", 1, math_reward, beside_sampling=True),
        Reward("choice", 1, choice_reward, beside_sampling=True),
        Reward("json", 1, json_reward, beside_sampling=True),
        Reward("length", 1, length_reward, beside_sampling=True),
        Reward("repetition", 1, repetition_reward, beside_sampling=True),
        Reward("safety", 1, safety_reward, beside_sampling=True),
        Reward("gym", 1, gym_reward, beside_sampling=True),
    )
}


def find_rewards(specs: Sequence[str]) -> list[Reward]:
    """The rewards that are named: built in, with options, or functions of the user's own (see `grpo.rewards.find`)."""
    return find.find_rewards(specs, REWARDS)


def score(rewards: Sequence[Reward], completions: Sequence[Completion]) -> list[tuple[float | None, ...]]:
    """The verdict of every reward on every completion: one row a completion, one column a reward.

    What a function raises is raised. Raises InputError naming the function and the sample where a verdict is not a
    finite number or None.
    """
    if not completions:
        return []
    try:
        columns = [checked(reward, call(reward, completions), completions) for reward in rewards]
    except WrongCount as error:
        raise InputError(str(error)) from error
    return [tuple(verdict.total for verdict in row) for row in zip(*columns, strict=True)]
