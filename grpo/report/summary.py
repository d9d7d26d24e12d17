"""A run in a few figures: accuracy before and after, reward, steps, time, tokens."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, NamedTuple

from grpo import intervals
from grpo.console import printable
from grpo.intervals import Estimate
from grpo.report.curves import finite_number, is_number
from grpo.report.runs import Run
from grpo.report.samples import is_right

Row = dict[str, Any]


class Fact(NamedTuple):
    """A figure as it is shown. `note` says what it is of."""

    label: str
    value: str
    note: str = ""


class Alarm(NamedTuple):
    """What a rule found wrong at a step, and what to try."""

    name: str
    severity: str
    message: str
    advice: str
    step: int


class Share(NamedTuple):
    """What a part of the steps, or the evaluations, took of the time of both."""

    name: str
    seconds: float
    share: float


def facts(run: Run) -> list[Fact]:
    """The same labels for every run, so that runs compare; an empty value where it was not measured."""
    evaluations = _evaluations(run)
    before = evaluations[0] if evaluations else None
    after = evaluations[-1] if len(evaluations) > 1 else None
    change = difference(run)
    rewards = [finite_number(row.get("reward")) for row in run.rows]
    reward = first_and_last([value for value in rewards if value is not None])
    seconds = math.fsum(row.get("time/step", 0.0) for row in run.rows)
    tokens = math.fsum(row.get("tokens_per_second", 0.0) * row.get("time/step", 0.0) for row in run.rows)
    planned = run.config.get("max_steps")
    done = "finished" if planned == run.steps else "not finished: training now, or interrupted" if planned else ""
    return [
        Fact("Held-out accuracy, first", *_accuracy(before)),
        Fact("Held-out accuracy, latest", *_accuracy(after)),
        Fact("Difference", f"{100 * change[0].value:+.1f} points" if change else "", _compared(change)),
        Fact("Reward", *(_reward(reward) if reward else ("",))),
        Fact("Steps", f"{run.steps:,}" + (f" of {planned:,}" if planned else ""), done),
        Fact("Time of the steps", *((duration(seconds), _besides(run)) if seconds else ("",))),
        Fact("Tokens", f"{tokens:,.0f}" if tokens else "", f"{tokens / seconds:,.0f} a second" if tokens else ""),
    ]


def verdict(run: Run) -> str:
    """What became of the accuracy, in one sentence."""
    evaluations = _evaluations(run)
    if not evaluations:
        return "This run has no held-out evaluation: whether the model learnt anything it was not shown is not known."
    first, last = evaluations[0]["eval_accuracy"], evaluations[-1]["eval_accuracy"]
    if len(evaluations) == 1:
        return f"Held-out accuracy was {first:.1%} at step {evaluations[0]['step']}; there is no later evaluation yet."
    moved = f"from {first:.1%} to {last:.1%}"
    change = difference(run)
    if change is None:
        return f"Held-out accuracy went {moved}."
    if change[0].low <= 0 <= change[0].high:
        return f"Held-out accuracy went {moved}: no clear change, the interval of the difference includes 0."
    return f"Held-out accuracy {'rose' if change[0].value > 0 else 'fell'} {moved}."


def difference(run: Run) -> tuple[Estimate, int] | None:
    """Latest minus first accuracy with its 95% interval, and the number of questions; paired by question."""
    pairs = [pair for pair in run.samples.pairs.get("held_out", []) if pair.last["step"] > pair.first["step"]]
    if not pairs:
        return None
    first = [float(bool(is_right(pair.first))) for pair in pairs]
    last = [float(bool(is_right(pair.last))) for pair in pairs]
    return intervals.difference(first, last), len(pairs)


def alarms(run: Run) -> list[Alarm]:
    """Critical ones first, then by step."""
    listed = [
        Alarm(
            printable(row["name"]).replace("_", " "),
            printable(row["severity"]),
            printable(row["message"]),
            printable(row["advice"]),
            row["step"],
        )
        for row in run.alarms
    ]
    return sorted(listed, key=lambda alarm: (alarm.severity != "critical", alarm.step))


def time_shares(run: Run) -> list[Share]:
    """The parts of the time, the longest first, and what they leave."""
    sums: dict[str, float] = defaultdict(float)
    for row in run.rows:
        for name, value in row.items():
            if name.startswith("time/") and is_number(value):
                sums[name.removeprefix("time/")] += value
    total = sums.pop("step", 0.0) + sums.get("evaluation", 0.0)
    if total <= 0:
        return []
    parts = sorted(sums.items(), key=lambda part: -part[1])
    parts.append(("the rest", max(total - math.fsum(sums.values()), 0.0)))
    return [Share(printable(name), seconds, seconds / total) for name, seconds in parts]


def first_and_last(values: list[float]) -> tuple[float, float, int] | None:
    """The mean of the first and of the last n values, and n: a tenth of them, at least 1 and at most 10."""
    if not values:
        return None
    n = min(max(len(values) // 10, 1), 10)
    return math.fsum(values[:n]) / n, math.fsum(values[-n:]) / n, n


def duration(seconds: float) -> str:
    """In the two largest units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _evaluations(run: Run) -> list[Row]:
    return [row for row in run.rows if is_number(row.get("eval_accuracy"))]


def _accuracy(row: Row | None) -> tuple[str, str]:
    if row is None:
        return "", ""
    low, high = finite_number(row.get("eval_accuracy_low")), finite_number(row.get("eval_accuracy_high"))
    if low is None or high is None:
        return f"{row['eval_accuracy']:.1%}", f"step {row['step']}"
    return f"{row['eval_accuracy']:.1%}", f"step {row['step']}, 95% interval {100 * low:.0f} to {100 * high:.0f}%"


def _compared(change: tuple[Estimate, int] | None) -> str:
    if change is None:
        return ""
    (_, low, high), number = change
    return f"95% interval {100 * low:+.0f} to {100 * high:+.0f}, on the same {number:,} questions"


def _besides(run: Run) -> str:
    seconds = math.fsum(row.get("time/evaluation", 0.0) for row in run.rows)
    return f"and {duration(seconds)} of evaluations" if seconds else "without evaluations"


def _reward(found: tuple[float, float, int]) -> tuple[str, str]:
    first, last, n = found
    of = "first and last step" if n == 1 else f"means of the first and last {n} steps"
    return f"{first:.3g} → {last:.3g}", of
