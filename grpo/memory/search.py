"""The largest number that keeps a growing cost within a budget, in few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


def largest(cost: Callable[[int], float], budget: float, low: int, high: int, guess: int) -> int | None:
    """The largest n in [low, high] with ``cost(n) <= budget``; None if there is none.

    The cost grows faster and faster, or evenly (convex): memory is affine in the number of sequences and, because of
    attention masks, quadratic in their length. So a line through two points that fit is below everything beyond them,
    and where it leaves the budget nothing further fits. The answer itself is always evaluated.
    """
    fits: dict[int, float] = {}
    fails: dict[int, float] = {}

    def evaluate(n: int) -> None:
        value = cost(n)
        (fits if value <= budget else fails)[n] = value

    evaluate(low)
    if fails:
        return None
    if high > low:
        evaluate(min(max(guess, low + 1), high))
    while True:
        best = max(fits)
        bound = min(fails, default=high + 1) - 1
        below = max((n for n in fits if n < best), default=None)
        reach = bound if below is None else _crossing((below, fits[below]), (best, fits[best]), budget, bound)
        if reach <= best:
            return best
        least = best + 1
        if fails:
            # A line to a point that fails is above everything between: what it lets through fits.
            least = max(least, _crossing((best, fits[best]), (bound + 1, fails[bound + 1]), budget, bound))
        known = sorted((fits | fails).items(), key=lambda point: abs(point[1] - budget))[:3]
        guess = _crossing_of_parabola(known, budget) if len(known) == 3 else least if fails else reach
        evaluate(min(max(guess, least), reach))


def _crossing(a: tuple[int, float], b: tuple[int, float], budget: float, bound: int) -> int:
    """The last whole n, `bound` at most, at which the line through two points is within the budget."""
    slope = (b[1] - a[1]) / (b[0] - a[0])
    if slope <= 0:
        return bound
    return min(bound, int(a[0] + (budget - a[1]) / slope))


def _crossing_of_parabola(points: Sequence[tuple[int, float]], budget: float) -> int:
    """The last whole n at which the parabola through three points is within the budget."""
    (x0, y0), (x1, y1), (x2, y2) = sorted(points)
    slope, next_slope = (y1 - y0) / (x1 - x0), (y2 - y1) / (x2 - x1)
    bend = (next_slope - slope) / (x2 - x0)
    # y0 + (x - x0) * (slope + bend * (x - x1)) is the budget
    b, c = slope - bend * (x1 - x0), y0 - budget
    if bend <= 0:
        return int(x0 - c / b) if b > 0 else x2
    return int(x0 + (-b + math.sqrt(max(0.0, b * b - 4 * bend * c))) / (2 * bend))
