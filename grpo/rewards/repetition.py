"""Repetition: minus the share of a completion's n-grams of tokens that were there before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo.errors import InputError


def repetition_reward(*, completion_ids: Sequence[Sequence[int]], n: int = 4, **_: Any) -> list[float | None]:
    """different n-grams / n-grams - 1, of the tokens: 0.0 where none comes twice, towards -1.0 where all are one.

    0.0 for a completion of fewer than n tokens. The penalty of arXiv 2502.03373 (appendix B) as one number for the
    completion, of tokens in place of words: writing without spaces does not escape it.

    Raises InputError for n below 1.
    """
    if n < 1:
        raise InputError(f"reward repetition: n is {n}; it must be at least 1")
    return [-repeated_share(ids, n) for ids in completion_ids]


def repeated_share(ids: Sequence[int], n: int) -> float:
    """1 - different n-grams / n-grams; 0 where there are none."""
    count = len(ids) - n + 1
    if count < 1:
        return 0.0
    return 1 - len({tuple(ids[start : start + n]) for start in range(count)}) / count
