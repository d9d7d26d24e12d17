"""Rewards judged by what they give to completions that are known to be right, or known to be no answer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from grpo.audit.adversaries import FILLER, Attempt, Role, answer_of, attempts
from grpo.errors import InputError
from grpo.groups import Completion, Task, weighted_total
from grpo.rewards import Reward, score

LENGTHS = (0, 250, 1000, 4000, 16000)  # characters of padding
CHARACTERS_PER_TOKEN = 4  # without a tokenizer
ROUNDING = 1e-9

Row = tuple[float | None, ...]


@dataclass(frozen=True)
class Kind:
    """What completions of one kind got, of each task the attempt with the highest total."""

    name: str
    role: Role
    mean: float | None
    """Mean total over the tasks that have a verdict."""
    highest: float | None
    full_share: float
    """Share of the tasks at which it got what a right answer gets in its best form, or more."""
    beats_share: float
    """Share of the tasks at which it got more than a right answer gets in the worst form that is accepted."""
    rewards: Row
    """Mean of each reward."""
    example: str
    """The completion with the highest total: untrusted text."""


@dataclass(frozen=True)
class LengthPoint:
    """Mean totals with so many characters of padding: before or after the best right answer, and of padding alone."""

    characters: int
    before: float | None
    after: float | None
    alone: float | None


@dataclass(frozen=True)
class Refusal:
    """A right answer that no form gets the full score for."""

    task: str
    answer: str
    total: float | None


@dataclass(frozen=True)
class AuditReport:
    rules: tuple[str, ...]
    tasks: int
    full_score: float | None
    """The highest total of a right answer."""
    kinds: tuple[Kind, ...]
    lengths: tuple[LengthPoint, ...]
    refused: tuple[Refusal, ...]
    findings: tuple[str, ...]
    """Why the rewards can be gamed; empty where they pass."""

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def highest_non_answer(self) -> Kind | None:
        """The kind of non-answer with the highest total."""
        judged = [kind for kind in self.kinds if kind.role == "non-answer" and kind.highest is not None]
        return max(judged, key=lambda kind: (kind.highest, kind.mean), default=None)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON."""
        return dataclasses.asdict(self) | {"passed": self.passed}


@dataclass(frozen=True)
class _Judged:
    task: Task
    attempt: Attempt
    row: Row
    total: float | None


def audit(
    rewards: Sequence[Reward],
    tasks: Sequence[Task],
    weights: Sequence[float] | None = None,
    answer_column: str | None = None,
    max_tasks: int = 20,
    tolerance: float = 0.0,
    tokenize: Callable[[str], Sequence[int]] | None = None,
    seed: int = 0,
) -> AuditReport:
    """Judge adversarial completions of at most `max_tasks` of the tasks, which `seed` chooses.

    A non-answer must get less than the right answer of the same task gets in its best form, and no more than it gets in
    any form that is accepted, that is one to which the first reward gives at least half of what it gives to any.
    `tolerance` is the share of tasks, in [0, 1), at which each kind of non-answer may be right by chance.

    `answer_column` names the column of right answers; the default is `solution`, or `answer`. `tokenize` gives the ids
    of a completion; without it four characters count as one token.

    Raises InputError where there are no tasks, or a task has no right answer.
    """
    if not tasks:
        raise InputError("there are no tasks to audit the rewards on")
    if not 0 <= tolerance < 1:
        raise InputError(f"--tolerance {tolerance}: must be at least 0 and below 1")
    if max_tasks < 1:
        raise InputError(f"--tasks {max_tasks}: must be at least 1")
    weights = tuple(weights or (1.0,) * len(rewards))
    chosen = list(tasks) if len(tasks) <= max_tasks else random.Random(seed).sample(list(tasks), max_tasks)
    answers = [answer_of(task, answer_column) for task in chosen]
    judge = _Judge(rewards, weights, tokenize)
    judged = judge.all(
        [
            (task, attempt)
            for task, answer in zip(chosen, answers, strict=True)
            for attempt in attempts(task, answer, answers)
        ]
    )
    right = {id(task): [j for j in judged if j.task is task and j.attempt.role == "right"] for task in chosen}
    best = {key: _best(forms) for key, forms in right.items()}
    worst = {key: _worst_accepted(forms) for key, forms in right.items()}
    names = dict.fromkeys((j.attempt.kind, j.attempt.role) for j in judged)
    kinds = tuple(
        _kind(name, role, [j for j in judged if (j.attempt.kind, j.attempt.role) == (name, role)], best, worst)
        for name, role in names
    )
    full = max((j.total for j in best.values() if j.total is not None), default=None)
    refused = tuple(
        Refusal(task.id, answer, best[id(task)].total)
        for task, answer in zip(chosen, answers, strict=True)
        if not _reaches(best[id(task)].total, full)
    )
    return AuditReport(
        rules=tuple(reward.rule for reward in rewards),
        tasks=len(chosen),
        full_score=full,
        kinds=kinds,
        # Of equally good forms the last: those that mark the answer off from what is around it come after the bare one.
        lengths=_lengths(judge, [_best(forms[::-1]) for forms in right.values()]),
        refused=refused,
        findings=tuple(_findings(kinds, full, tolerance)),
    )


class _Judge:
    def __init__(
        self,
        rewards: Sequence[Reward],
        weights: Sequence[float],
        tokenize: Callable[[str], Sequence[int]] | None,
    ) -> None:
        self.rewards = rewards
        self.weights = weights
        self.tokenize = tokenize or (lambda text: range(-(-len(text) // CHARACTERS_PER_TOKEN)))

    def all(self, pairs: Sequence[tuple[Task, Attempt]]) -> list[_Judged]:
        completions = [
            Completion(task, tuple(self.tokenize(attempt.text)), attempt.text, truncated=False)
            for task, attempt in pairs
        ]
        rows = score(self.rewards, completions)
        return [
            _Judged(task, attempt, row, weighted_total(row, self.weights))
            for (task, attempt), row in zip(pairs, rows, strict=True)
        ]


def _best(judged: Sequence[_Judged]) -> _Judged:
    """The one with the highest total; no verdict is lowest."""
    return max(judged, key=lambda j: float("-inf") if j.total is None else j.total)


def _worst_accepted(forms: Sequence[_Judged]) -> float | None:
    """The lowest total of the right answer in a form that the first reward accepts; None where it accepts none."""
    most = max((j.row[0] for j in forms if j.row[0] is not None), default=0.0)
    accepted = [j.total for j in forms if most > 0 and j.row[0] is not None and j.row[0] >= most / 2]
    return min((total for total in accepted if total is not None), default=None)


def _kind(
    name: str, role: Role, judged: Sequence[_Judged], best: dict[int, _Judged], worst: dict[int, float | None]
) -> Kind:
    of_task: dict[int, list[_Judged]] = {}
    for j in judged:
        of_task.setdefault(id(j.task), []).append(j)
    tops = [_best(some) for some in of_task.values()]
    top = _best(tops)
    return Kind(
        name=name,
        role=role,
        mean=_mean([j.total for j in tops]),
        highest=top.total,
        full_share=fmean(_reaches(j.total, best[id(j.task)].total) for j in tops),
        beats_share=fmean(_beats(j.total, worst[id(j.task)]) for j in tops),
        rewards=tuple(_mean(column) for column in zip(*(j.row for j in tops), strict=True)),
        example=top.attempt.text,
    )


def _lengths(judge: _Judge, best: Sequence[_Judged]) -> tuple[LengthPoint, ...]:
    points = []
    for size in LENGTHS:
        padding = (FILLER * (size // len(FILLER) + 1))[:size]
        means = []
        for write in (
            lambda text, padding=padding: f"{padding}\n{text}" if padding else text,
            lambda text, padding=padding: f"{text}\n{padding}" if padding else text,
            lambda text, padding=padding: padding,
        ):
            pairs = [(j.task, dataclasses.replace(j.attempt, text=write(j.attempt.text))) for j in best]
            means.append(_mean([j.total for j in judge.all(pairs)]))
        points.append(LengthPoint(size, *means))
    return tuple(points)


def _findings(kinds: Sequence[Kind], full: float | None, tolerance: float) -> list[str]:
    if full is None:
        return ["no right answer gets a verdict"]
    findings = []
    for kind in kinds:
        if kind.role == "non-answer" and kind.full_share > tolerance:
            findings.append(f"{kind.name}: gets the score of a right answer at {kind.full_share:.0%} of the tasks")
        elif kind.role == "non-answer" and kind.beats_share > tolerance:
            findings.append(f"{kind.name}: beats a right answer in another form at {kind.beats_share:.0%} of the tasks")
    return findings


def _reaches(total: float | None, wanted: float | None) -> bool:
    return total is not None and (wanted is None or total >= wanted - ROUNDING)


def _beats(total: float | None, other: float | None) -> bool:
    return total is not None and other is not None and total > other + ROUNDING


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
