"""How sure an accuracy is: intervals of proportions and means, pass@k, maj@k, and comparisons of two models."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

# Two-sided 95%.
Z = 1.959963984540054
# Subsets of samples that maj@k goes through, all of them where there are no more.
SUBSETS = 2000


class Estimate(NamedTuple):
    """A value and its 95% interval."""

    value: float
    low: float
    high: float


def proportion(successes: int, trials: int) -> Estimate:
    """A share with Wilson's score interval (1927), which holds for small numbers and near 0 and 1."""
    if trials < 1:
        raise ValueError(f"trials is {trials}; it must be at least 1")
    share, z2 = successes / trials, Z * Z
    center = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    return Estimate(share, max(center - half, 0.0), min(center + half, 1.0))


def mean(values: Sequence[float]) -> Estimate:
    """The mean of one value in [0, 1] a question, with an interval over the questions.

    The normal interval after adding two values of 0 and two of 1 (Agresti and Coull 1998): it does not shrink to a
    point where all values are equal, and holds 95% of the time or more with few questions, where the plain one does
    not.
    """
    center, half = _normal(values, {0.0: 2.0, 1.0: 2.0})
    return Estimate(math.fsum(values) / len(values), max(center - half, 0.0), min(center + half, 1.0))


def difference(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """The mean of `after - before` on the same questions, both in [0, 1], with an interval over the questions.

    The normal interval after adding one question that both or neither get right, and half a one that either alone
    does (Agresti and Min 2005).
    """
    values = [b - a for a, b in zip(before, after, strict=True)]
    center, half = _normal(values, {-1.0: 0.5, 0.0: 1.0, 1.0: 0.5})
    return Estimate(math.fsum(values) / len(values), max(center - half, -1.0), min(center + half, 1.0))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that one of k samples is right, from `correct` of `samples`, without bias (arXiv 2107.03374)."""
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}; it must be from 1 to the number of samples ({samples})")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def maj_at_k(answers: Sequence[Hashable], is_right: Sequence[bool], k: int, seed: int = 0) -> float:
    """Probability that the most frequent answer of k samples is right (self-consistency, arXiv 2203.11171).

    The mean over subsets of k of the samples: all of them, or 2000 that the seed draws, without bias either way. Of
    answers that are equally frequent, and of equal answers with unequal verdicts, each counts in part.
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"k is {k}; it must be from 1 to the number of samples ({len(answers)})")
    if len(answers) != len(is_right):
        raise ValueError(f"is_right has {len(is_right)} verdicts; it must have one for each of {len(answers)} answers")
    places = range(len(answers))
    if math.comb(len(answers), k) <= SUBSETS:
        chosen = list(combinations(places, k))
    else:
        draw = random.Random(seed)
        chosen = [tuple(draw.sample(places, k)) for _ in range(SUBSETS)]
    return math.fsum(_vote(subset, answers, is_right) for subset in chosen) / len(chosen)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p of as uneven a split of the questions that one of two models alone answers (McNemar 1947)."""
    total, fewer = only_first + only_second, min(only_first, only_second)
    if total == 0:
        return 1.0
    return min(1.0, 2 * sum(math.comb(total, n) for n in range(fewer + 1)) / 2**total)


def _vote(subset: Sequence[int], answers: Sequence[Hashable], is_right: Sequence[bool]) -> float:
    counts = Counter(answers[n] for n in subset)
    most = max(counts.values())
    winners = [is_right[n] for n in subset if counts[answers[n]] == most]
    return sum(winners) / len(winners)


def _normal(values: Sequence[float], added: Mapping[float, float]) -> tuple[float, float]:
    """(center, half the width) of the normal interval of a mean, with further values counted by their weights."""
    if not values:
        raise ValueError("values is empty; it must have at least 1")
    number = len(values) + sum(added.values())
    center = (math.fsum(values) + sum(value * weight for value, weight in added.items())) / number
    squares = math.fsum((v - center) ** 2 for v in values)
    squares += sum(weight * (value - center) ** 2 for value, weight in added.items())
    return center, Z * math.sqrt(squares) / number
