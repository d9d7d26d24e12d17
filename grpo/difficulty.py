"""How often each question is solved, and what follows for how often and how widely it is sampled."""

from __future__ import annotations

import heapq
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from grpo.errors import InputError
from grpo.groups import Group, Task


def success_rate(group: Group) -> float | None:
    """Mean of the group's correctness, each taken as 0 below 0 and as 1 above 1; None without any verdict.

    For a reward of 0 or 1 this is the share of solved completions. The other rewards, such as penalties, say
    nothing about how hard the question is.
    """
    solved = _successes(group)
    return math.fsum(solved) / len(solved) if solved else None


class Difficulty:
    """The success rate p of every question, and its sampling weight `floor + (1 - floor) * 4 p (1 - p)`.

    p = (successes + prior / 2) / (completions + prior), so that a question that was never tried has p = 1/2 and the
    largest weight, 1. Before each update of a question both of its counts are multiplied by `decay`: 1 counts for
    ever, less forgets what an earlier policy did. `floor` is the weight of a question that is always or never
    solved: above 0, so that every question stays in play. With `floor` 1 all weights are equal.
    """

    def __init__(self, decay: float = 0.7, prior: float = 1.0, floor: float = 0.1) -> None:
        if not 0 <= decay <= 1:
            raise InputError(f"difficulty_decay is {decay}; it must be between 0 and 1")
        if not (math.isfinite(prior) and prior > 0):
            raise InputError(f"difficulty_prior is {prior}; it must be a finite number above 0")
        if not 0 < floor <= 1:
            raise InputError(f"difficulty_floor is {floor}; it must be above 0 and at most 1")
        self.decay = decay
        self.prior = prior
        self.floor = floor
        self._counts: dict[str, tuple[float, float]] = {}

    def update(self, groups: Iterable[Group]) -> None:
        """Count the completions of one step; those without a verdict do not count. The order does not matter."""
        solved: dict[str, list[float]] = defaultdict(list)
        for group in groups:
            solved[group.task.id] += _successes(group)
        for question, values in solved.items():
            if values:
                successes, completions = self._counts.get(question, (0.0, 0.0))
                self._counts[question] = (
                    self.decay * successes + math.fsum(values),
                    self.decay * completions + len(values),
                )

    def rate(self, question: str) -> float:
        """The estimated success rate p, strictly between 0 and 1."""
        successes, completions = self._counts.get(question, (0.0, 0.0))
        return (successes + self.prior / 2) / (completions + self.prior)

    def weight(self, question: str) -> float:
        """The sampling weight, from `floor` to 1."""
        p = self.rate(question)
        return self.floor + (1 - self.floor) * 4 * p * (1 - p)

    def order(self, tasks: Sequence[Task], rng: random.Random) -> Iterator[Task]:
        """Tasks for one step, without end: drawn by weight without replacement, again from all when none is left.

        At every draw a question that is left comes next with probability weight / sum of the weights that are left
        (Efraimidis and Spirakis 2006). The weights are those of now; `rng` gives one number a task and pass.
        """
        while tasks:
            keys = [math.log(1 - rng.random()) / self.weight(task.id) for task in tasks]
            yield from (tasks[i] for i in sorted(range(len(tasks)), key=lambda i: (-keys[i], i)))

    def state_dict(self) -> dict[str, Any]:
        """The counts, as plain JSON: {"questions": {id: [successes, completions]}}."""
        return {"questions": {question: list(counts) for question, counts in self._counts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._counts = {question: (float(s), float(n)) for question, (s, n) in state["questions"].items()}


def allocate(total: int, low: int, high: int, weights: Sequence[float]) -> list[int]:
    """Group sizes for questions of these weights: `total` completions in all, from `low` to `high` for each.

    Everybody has `low`; each further completion goes to the question with the largest weight / (extra
    completions so far + 1) that has fewer than `high` (D'Hondt's method: the extra is in proportion to the
    weights). Ties go to the one with fewer, then to the first. Weights must be finite and not negative.
    Raises InputError where no such sizes exist.
    """
    count = len(weights)
    if not 1 <= low <= high:
        raise InputError(f"group sizes from {low} to {high} are impossible; they must be at least 1 and in order")
    if not low * count <= total <= high * count:
        raise InputError(
            f"{total} completions cannot be shared by {count} questions in groups of {low} to {high}; "
            f"the number must be from {low * count} to {high * count}"
        )
    extra = [0] * count
    queue = [(-weight, 0, i) for i, weight in enumerate(weights)] if high > low else []
    heapq.heapify(queue)
    for _ in range(total - low * count):
        _, _, i = heapq.heappop(queue)
        extra[i] += 1
        if low + extra[i] < high:
            heapq.heappush(queue, (-weights[i] / (extra[i] + 1), extra[i], i))
    return [low + e for e in extra]


def _successes(group: Group) -> list[float]:
    return [min(max(value, 0.0), 1.0) for value in group.correctness if value is not None]
