"""Held-out greedy accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.groups import Completion, Task
from grpo.policy import Policy
from grpo.rewards import Reward, score
from grpo.rollout import greedy


@dataclass(frozen=True)
class Evaluation:
    """Greedy completions of the held-out tasks, in their order, and the verdicts of every reward on them."""

    completions: tuple[Completion, ...]
    rewards: tuple[tuple[float | None, ...], ...]

    @property
    def accuracy(self) -> float:
        """The share of tasks to which the first reward gives 1 or more."""
        return sum(self.correct) / len(self.correct)

    def metrics(self) -> dict[str, float]:
        """Under the names of a run's metrics."""
        return {"eval_accuracy": self.accuracy}

    @property
    def correct(self) -> tuple[bool, ...]:
        return tuple(row[0] is not None and row[0] >= 1.0 for row in self.rewards)


def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    rewards: Sequence[Reward],
    max_completion_length: int,
    batch_size: int,
) -> Evaluation:
    completions = greedy(policy, tasks, max_completion_length, batch_size)
    return Evaluation(tuple(completions), tuple(score(rewards, completions)))
