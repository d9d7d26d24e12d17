"""The completion's length: 0 within a budget of tokens, falling to -1 beyond it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.errors import InputError
from grpo.truncation import soft_overlong_penalty

BUDGET = re.compile(r"([^:]+):([0-9]{1,9})")


def length_reward(
    *,
    completion_ids: Sequence[Sequence[int]],
    task_type: Sequence[str | None] | None = None,
    budget: int = 512,
    ramp: int = 128,
    budgets: str = "",
    **_: Any,
) -> list[float | None]:
    """0.0 up to `budget` tokens, then falling linearly to -1.0 over `ramp` tokens more, and -1.0 beyond.

    That is DAPO's soft overlong punishment (arXiv 2503.14476, equation 13) with a budget that is not the length limit.
    `budgets`, as in easy:128;hard:512, sets others for rows whose column `task_type` has these names.

    Raises InputError for budgets below 0, a ramp below 1 and `budgets` of another form.
    """
    if budget < 0 or ramp < 1:
        raise InputError(f"reward length: budget is {budget} and ramp {ramp}; they must be at least 0 and 1")
    of_type = _parse(budgets)
    types = [None] * len(completion_ids) if task_type is None else task_type
    limits = [of_type.get(str(kind), budget) + ramp for kind in types]
    return [soft_overlong_penalty(len(ids), limit, ramp) for ids, limit in zip(completion_ids, limits, strict=True)]


def _parse(budgets: str) -> Mapping[str, int]:
    found = {}
    for part in filter(None, budgets.split(";")):
        budget = BUDGET.fullmatch(part)
        if not budget:
            raise InputError(f"reward length: budgets is {budgets!r}; it must be TYPE:TOKENS;TYPE:TOKENS")
        found[budget[1]] = int(budget[2])
    return found
