"""Which questions come next: every one once an epoch, or by difficulty."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from grpo.difficulty import Difficulty
from grpo.errors import InputError
from grpo.groups import Task


class Questions:
    """The order of the training questions, which the seed decides.

    Every question comes once an epoch, each epoch in an order of its own; or, `by_difficulty`, they are drawn by the
    weights of the difficulty table, anew for each step.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        difficulty: Difficulty | None = None,
        by_difficulty: bool = False,
    ) -> None:
        if not tasks:
            raise InputError("there are no questions to train on")
        self.tasks = tasks
        self.seed = seed
        self.difficulty = difficulty
        self.by_difficulty = by_difficulty
        self.drawn = 0
        self._epochs = endless(tasks, seed)

    def for_step(self, step: int) -> Iterator[Task]:
        """Questions for the sampling before optimizer step `step`, without end."""
        if self.difficulty is not None and self.by_difficulty:
            yield from self.difficulty.order(self.tasks, random.Random(f"{self.seed}:{step}"))
        while True:
            self.drawn += 1
            yield next(self._epochs)

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"drawn": self.drawn, "difficulty": self.difficulty.state_dict() if self.difficulty else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]
        self._epochs = islice(endless(self.tasks, self.seed), self.drawn, None)
        if self.difficulty is not None:
            self.difficulty.load_state_dict(state["difficulty"])


def endless(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """Every task once an epoch, for ever, in an order that each epoch and seed has of its own."""
    order = random.Random(seed)
    while True:
        yield from order.sample(tasks, len(tasks))
