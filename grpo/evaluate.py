"""Held-out accuracy: greedy, and of several samples a question; of a policy, and of its base beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from grpo import intervals
from grpo.groups import Completion, Parts, Task, correctness, is_right
from grpo.intervals import Estimate
from grpo.policy import Policy
from grpo.rewards import RewardRunner
from grpo.rewards.answer import last_tagged
from grpo.rewards.numeric import last_number
from grpo.rollout import greedy, sample


@dataclass(frozen=True)
class Evaluation:
    """Greedy completions of the held-out tasks, in their order, and the verdicts of every reward on them.

    `parts`: what the verdicts are made of (see `Group`).
    """

    completions: tuple[Completion, ...]
    rewards: tuple[tuple[float | None, ...], ...]
    parts: tuple[Parts, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of tasks that are right: to which the first reward, or the first of its parts, gives 1 or more."""
        return sum(self.correct) / len(self.correct)

    @property
    def interval(self) -> Estimate:
        """The accuracy with its 95% interval."""
        return intervals.proportion(sum(self.correct), len(self.correct))

    def metrics(self) -> dict[str, float]:
        """Under the names of a run's metrics."""
        accuracy = self.interval
        return {
            "eval_accuracy": accuracy.value,
            "eval_accuracy_low": accuracy.low,
            "eval_accuracy_high": accuracy.high,
            "eval_mean_length": sum(len(c.ids) for c in self.completions) / len(self.completions),
        }

    @property
    def correct(self) -> tuple[bool, ...]:
        parts = self.parts or ({},) * len(self.rewards)
        rules = self.completions[0].task.rules if self.completions else ("",)
        return tuple(is_right(correctness(rules, row, own)) for row, own in zip(self.rewards, parts, strict=True))


def evaluate(
    policy: Policy,
    tasks: Sequence[Task],
    rewards: RewardRunner,
    max_completion_length: int,
    batch_size: int,
) -> Evaluation:
    """Greedy answers to the tasks, judged."""
    return judged(rewards, greedy(policy, tasks, max_completion_length, batch_size))


def judged(rewards: RewardRunner, completions: Sequence[Completion]) -> Evaluation:
    scores = rewards.score(completions)
    return Evaluation(tuple(completions), tuple(scores.rows), tuple(scores.parts))


@dataclass(frozen=True)
class Sampled:
    """Several answers to each task, [tasks][samples], and which of them are right."""

    completions: tuple[tuple[Completion, ...], ...]
    correct: tuple[tuple[bool, ...], ...]

    def pass_at(self, k: int) -> list[float]:
        """pass@k of every task."""
        return [intervals.pass_at_k(len(row), sum(row), k) for row in self.correct]

    def maj_at(self, k: int) -> list[float]:
        """maj@k of every task; answers are equal where `answer_of` is."""
        return [
            intervals.maj_at_k([answer_of(c.text) for c in completions], row, k)
            for completions, row in zip(self.completions, self.correct, strict=True)
        ]


def evaluate_samples(
    policy: Policy,
    tasks: Sequence[Task],
    rewards: RewardRunner,
    max_completion_length: int,
    batch_size: int,
    samples: int,
    temperature: float = 1.0,
) -> Sampled:
    """`samples` answers to each task at a temperature, judged as greedy ones are."""
    groups = sample(policy, tasks, [temperature] * samples, max_completion_length, batch_size)
    correct = iter(judged(rewards, [completion for group in groups for completion in group]).correct)
    return Sampled(tuple(tuple(group) for group in groups), tuple(tuple(islice(correct, samples)) for _ in groups))


@dataclass(frozen=True)
class Answers:
    """A model's greedy answers to some tasks and, if they were asked for, its sampled ones."""

    greedy: Evaluation
    sampled: Sampled | None


def evaluate_model(
    policy: Policy,
    tasks: Sequence[Task],
    rewards: RewardRunner,
    max_completion_length: int,
    batch_size: int,
    samples: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
) -> Answers:
    """Greedy answers and `samples` sampled ones to each task, judged; the seed decides what is sampled.

    Inside `policy.as_base()` these are the answers of the base.
    """
    length, batch = max_completion_length, batch_size
    found = evaluate(policy, tasks, rewards, length, batch)
    if not samples:
        return Answers(found, None)
    torch.manual_seed(seed)
    return Answers(found, evaluate_samples(policy, tasks, rewards, length, batch, samples, temperature))


@dataclass(frozen=True)
class Comparison:
    """One measure of two models on the same questions: each with its interval, and the difference with its own."""

    name: str
    base: Estimate
    adapter: Estimate
    difference: Estimate
    p: float | None = None
    """Exact McNemar p of greedy answers."""

    def to_dict(self) -> dict[str, Any]:
        names = ("base", "adapter", "difference")
        return {name: getattr(self, name)._asdict() for name in names} | ({} if self.p is None else {"p": self.p})


def compare_greedy(base: Evaluation, adapter: Evaluation) -> Comparison:
    pairs = list(zip(base.correct, adapter.correct, strict=True))
    difference = intervals.difference(base.correct, adapter.correct)
    p = intervals.mcnemar(sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs))
    return Comparison("greedy accuracy", base.interval, adapter.interval, difference, p)


def compare_means(name: str, base: Sequence[float], adapter: Sequence[float]) -> Comparison:
    """Of a measure between 0 and 1 that every question has."""
    return Comparison(name, intervals.mean(base), intervals.mean(adapter), intervals.difference(base, adapter))


def answer_of(text: str) -> str:
    """What is voted on: the number, or the text without case and space, of the last <answer>...</answer> or of all."""
    tagged = last_tagged(text)
    text = text if tagged is None else tagged
    number = last_number(text)
    return str(number) if number is not None else " ".join(text.casefold().split())
