"""Metrics as curves: few enough points to draw, without losing a peak."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

POINTS = 1000  # of a curve
SMOOTH_FROM = 40  # points, from which on a curve has a moving mean
SMOOTH_POINTS = 250  # of that mean


@dataclass(frozen=True)
class Curve:
    """A metric where it was measured, over the steps or against another. A value that is not finite is a gap, None."""

    label: str
    style: int
    """Which of the page's line styles it has."""
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None = None
    high: list[float | None] | None = None
    """Ends of the interval, where the metric has `METRIC_low` and `METRIC_high`."""
    smooth: tuple[list[float], list[float]] | None = None
    """(x, y) of a moving mean."""

    @property
    def finite(self) -> list[float]:
        return [value for value in self.y if value is not None]

    @property
    def is_constant(self) -> bool:
        """Measured more than once, with one value each time."""
        return len(self.y) > 1 and None not in self.y and len(set(self.y)) == 1

    def to_dict(self) -> dict[str, Any]:
        """For the page: at most about POINTS points of 6 digits."""
        kept = thin(self.y, POINTS)
        columns: list[tuple[str, Sequence[float | None] | None]] = [
            ("x", self.x), ("y", self.y), ("low", self.low), ("high", self.high),
        ]  # fmt: skip
        found: dict[str, Any] = {"name": self.label, "style": self.style} | {
            name: [_rounded(values[n]) for n in kept] for name, values in columns if values is not None
        }
        if self.smooth is not None:
            found["smooth"] = [[_rounded(value) for value in values] for values in self.smooth]
        return found


def curve(rows: Sequence[Mapping[str, Any]], metric: str, label: str, style: int = 0, against: str = "step") -> Curve:
    """The values of a metric in rows that have it, against those of another; smoothed only against the step."""
    found = [row for row in rows if is_number(row.get(metric)) and finite_number(row.get(against)) is not None]
    x, y = [float(row[against]) for row in found], [finite_number(row[metric]) for row in found]
    low, high = ([finite_number(row.get(f"{metric}_{end}")) for row in found] for end in ("low", "high"))
    if against != "step":
        return Curve(label, style, x, y)
    if None in low or None in high:
        return Curve(label, style, x, y, smooth=smooth(x, y))
    return Curve(label, style, x, y, low, high)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def thin(values: Sequence[float | None], most: int) -> list[int]:
    """Indices of at most `most` of the values, rising: of each stretch the smallest and the largest, and both ends.

    A stretch without any finite value keeps its first index, so that a gap stays one.
    """
    if len(values) <= most:
        return list(range(len(values)))
    stretches = most // 2 - 1
    kept = {0, len(values) - 1}
    for n in range(stretches):
        stretch = range(n * len(values) // stretches, (n + 1) * len(values) // stretches)
        finite = [(value, i) for i in stretch if (value := values[i]) is not None]
        kept |= {min(finite)[1], max(finite)[1]} if finite else {stretch[0]}
    return sorted(kept)


def smooth(x: Sequence[float], y: Sequence[float | None]) -> tuple[list[float], list[float]] | None:
    """A moving mean over a tenth of the points, at most SMOOTH_POINTS of it; None for a curve of few points.

    The window is centred and shrinks evenly on both sides towards the ends, so that a trend is not shifted.
    """
    points = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if len(points) < SMOOTH_FROM:
        return None
    sums = [0.0, *accumulate(value for _, value in points)]
    half, last = len(points) // 20, len(points) - 1
    number = min(len(points), SMOOTH_POINTS)
    centers = [n * last // (number - 1) for n in range(number)]
    reach = [min(half, center, last - center) for center in centers]
    means = [(sums[c + r + 1] - sums[c - r]) / (2 * r + 1) for c, r in zip(centers, reach, strict=True)]
    return [points[c][0] for c in centers], means


def finite_number(value: Any) -> float | None:
    """The value as a number; None for what is none, or not finite."""
    return float(value) if is_number(value) and math.isfinite(value) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
