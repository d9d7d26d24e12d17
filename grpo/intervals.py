"""How sure an accuracy is: intervals of proportions and means, pass@k, maj@k, and comparisons of two models."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
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


def mean(values: Sequence[float], low: float = -math.inf, high: float = math.inf) -> Estimate:
    """The mean of one value a question, with the normal interval over the questions, cut to [low, high]."""
    if not values:
        raise ValueError("values is empty; it must have at least 1")
    center = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(center, low, high)
    variance = math.fsum((v - center) ** 2 for v in values) / (len(values) - 1)
    half = Z * math.sqrt(variance / len(values))
    return Estimate(center, max(center - half, low), min(center + half, high))


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that one of k samples is right, from `correct` of `samples`, without bias (arXiv 2107.03374)."""
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}; it must be from 1 to the number of samples ({samples})")
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def maj_at_k(answers: Sequence[Hashable], is_right: Sequence[bool], k: int, seed: int = 0) -> float:
    """Probability that the most frequent answer of k samples is right (self-consistency, arXiv 2203.11171).

    The mean over subsets of k of the samples: all of them, or 2000 that the seed draws. Of answers that are equally
    frequent each counts in part.
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"k is {k}; it must be from 1 to the number of samples ({len(answers)})")
    right = dict(zip(answers, is_right, strict=True))
    places = range(len(answers))
    if math.comb(len(answers), k) <= SUBSETS:
        chosen = list(combinations(places, k))
    else:
        draw = random.Random(seed)
        chosen = [tuple(draw.sample(places, k)) for _ in range(SUBSETS)]
    return math.fsum(_vote([answers[n] for n in subset], right) for subset in chosen) / len(chosen)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p of as uneven a split of the questions that one of two models alone answers (McNemar 1947)."""
    total, fewer = only_first + only_second, min(only_first, only_second)
    if total == 0:
        return 1.0
    return min(1.0, 2 * sum(math.comb(total, n) for n in range(fewer + 1)) / 2**total)


def _vote(answers: Sequence[Hashable], right: dict[Hashable, bool]) -> float:
    counts = Counter(answers)
    most = max(counts.values())
    best = [answer for answer, number in counts.items() if number == most]
    return sum(right[answer] for answer in best) / len(best)
