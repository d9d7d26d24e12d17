"""Questions that no completion solved, and the reference solutions to learn them from instead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from grpo.difficulty import success_rate
from grpo.errors import InputError
from grpo.groups import Group


@dataclass(frozen=True)
class Solution:
    """A prompt and the text that the data gives as its answer: one example for supervised training."""

    prompt_ids: tuple[int, ...]
    text: str


def reference_solutions(groups: Iterable[Group], column: str) -> list[Solution]:
    """The solutions in data column `column` of the questions that are all wrong: no first reward above 0.

    A group without any verdict is not wrong. A question whose group comes several times gives one solution; one
    whose row has no solution (None or empty) gives none. Raises InputError where the column is missing or holds
    something else than text.
    """
    solutions: dict[str, Solution] = {}
    for group in groups:
        task = group.task
        if column not in task.columns:
            raise InputError(
                f"the reference solution column {column!r} is not in the data of question {task.id}; "
                f"its columns are {', '.join(sorted(task.columns)) or 'none'}"
            )
        text = task.columns[column]
        if text is not None and not isinstance(text, str):
            raise InputError(
                f"the reference solution column {column!r} of question {task.id} holds a {type(text).__name__}; "
                "it must be text"
            )
        if text and success_rate(group) == 0:
            solutions.setdefault(task.id, Solution(task.prompt_ids, text))
    return list(solutions.values())
