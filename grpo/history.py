"""What the metrics of a run were at its start and what they are now, in bounded memory."""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

START, RECENT = 10, 50  # rows in which a metric was measured


class History:
    """Of every metric the first 10 and the latest 50 values, and the first and the latest evaluation."""

    def __init__(self) -> None:
        self.step = 0
        self.first_evaluation: Mapping[str, Any] | None = None
        self.last_evaluation: Mapping[str, Any] | None = None
        self._start: dict[str, list[float]] = defaultdict(list)
        self._recent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._count: dict[str, int] = defaultdict(int)

    def add(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""
        self.step = row["step"]
        if row.get("eval_accuracy") is not None:
            self.first_evaluation = self.first_evaluation or row
            self.last_evaluation = row
        for name, value in row.items():
            if isinstance(value, (int, float)):
                self._count[name] += 1
                self._recent[name].append(float(value))
                if len(self._start[name]) < START:
                    self._start[name].append(float(value))

    def names(self, prefix: str, suffix: str = "") -> list[str]:
        """The metrics whose names begin and end so."""
        return [name for name in self._count if name.startswith(prefix) and name.endswith(suffix)]

    def count(self, name: str) -> int:
        """How often a metric was measured."""
        return self._count.get(name, 0)

    def recent(self, name: str, number: int = RECENT) -> list[float]:
        """Its latest values, at most 50."""
        return list(self._recent[name])[-number:] if name in self._count else []

    def now(self, name: str, number: int = 10) -> float | None:
        """The mean of its latest values; None before there are that many."""
        values = self.recent(name, number)
        return statistics.fmean(values) if len(values) == number else None

    def at_start(self, name: str) -> float | None:
        """The mean of its first 10 values; None before 10 more have followed."""
        return statistics.fmean(self._start[name]) if self.count(name) >= 2 * START else None

    def rise(self, name: str) -> float | None:
        """The mean of the latest 10 values minus that of the first 10, 0 where it is within their noise (two standard
        errors); None before there are 20."""
        before = self.at_start(name)
        if before is None:
            return None
        first, last = self._start[name], self.recent(name, START)
        error = ((statistics.variance(first) + statistics.variance(last)) / START) ** 0.5
        rise = statistics.fmean(last) - before
        return rise if abs(rise) > 2 * error else 0.0
