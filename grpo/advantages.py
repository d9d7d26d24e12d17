"""Group-relative advantages: how much better a completion did than the others of its group."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Rewards that differ by less than this share of the largest are one reward, computed in different orders.
SAME = 1e-6


def group_advantages(
    groups: Sequence[Sequence[float | None]], scale_rewards: str = "group"
) -> list[list[float | None]]:
    """Advantages of the rewards in `groups`, in the same layout.

    A reward of None is excluded: it has no advantage (None) and does not count in the mean or the deviation.
    `scale_rewards` divides by the sample standard deviation of the group ("group"), of all rewards in all
    groups ("batch"), or by nothing ("none"). A group whose rewards are all equal, or that has one reward,
    gets exactly 0.
    """
    if scale_rewards not in ("group", "batch", "none"):
        raise ValueError(f"scale_rewards is {scale_rewards!r}; it must be 'group', 'batch' or 'none'")
    for rewards in groups:
        for reward in rewards:
            if reward is not None and not math.isfinite(reward):
                raise ValueError(f"a reward is {reward}; it must be a finite number, or None")
    batch_scale = _deviation([r for rewards in groups for r in rewards if r is not None])
    return [_advantages(rewards, scale_rewards, batch_scale) for rewards in groups]


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether these rewards tell the completions apart no better than rounding does."""
    return not rewards or max(rewards) - min(rewards) <= SAME * max(abs(r) for r in rewards)


def _advantages(rewards: Sequence[float | None], scale_rewards: str, batch_scale: float) -> list[float | None]:
    present = [r for r in rewards if r is not None]
    if all_equal(present):
        return [None if r is None else 0.0 for r in rewards]
    mean = math.fsum(present) / len(present)
    scale = {"group": _deviation(present), "batch": batch_scale, "none": 1.0}[scale_rewards]
    return [None if r is None else (r - mean) / scale for r in rewards]


def _deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
