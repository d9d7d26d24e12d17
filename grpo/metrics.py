"""Metrics under TRL's names. Every mean is a sum over a count, over the whole batch of completions."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo.advantages import all_equal
from grpo.groups import Group

if TYPE_CHECKING:
    import torch


class TokenMeans:
    """Means over tokens of values that come in parts of different size. Sums stay on their device."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, name: str, mean: torch.Tensor | float, tokens: int) -> None:
        """A part's mean over its `tokens`."""
        self._sums[name] += mean * tokens
        self._counts[name] += tokens

    def read(self) -> dict[str, float]:
        return {name: float(total) / max(self._counts[name], 1) for name, total in self._sums.items()}


def rollout_metrics(groups: Sequence[Group], names: Sequence[str], weights: tuple[float, ...]) -> dict[str, float]:
    """What the sampled completions say; a mean over no verdicts at all is left out."""
    completions = [c for group in groups for c in group.completions]
    totals = [[t for t in group.totals(weights) if t is not None] for group in groups]
    metrics = _mean("reward", [t for group in totals for t in group])
    metrics |= _mean("reward_std", [statistics.stdev(group) for group in totals if len(group) > 1])
    for column, name in enumerate(names):
        verdicts = [row[column] for group in groups for row in group.rewards]
        metrics |= _mean(f"rewards/{name}/mean", [v for v in verdicts if v is not None])
    metrics |= _mean("frac_reward_zero_std", [float(all_equal(group)) for group in totals])
    metrics |= _mean("completions/mean_length", [len(c.ids) for c in completions])
    metrics |= _mean("completions/clipped_ratio", [float(c.truncated) for c in completions])
    return metrics


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: statistics.fmean(values)} if values else {}
