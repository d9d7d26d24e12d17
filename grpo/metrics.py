"""Metrics under TRL's names. Every mean is a sum over a count, over the whole step and all processes."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo import processes
from grpo.advantages import all_equal
from grpo.difficulty import success_rate
from grpo.groups import Group

if TYPE_CHECKING:
    import torch


class TokenMeans:
    """Means over tokens of values that come in parts of different size. Sums stay on their device until read."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = defaultdict(float)
        self._counts: dict[str, int] = defaultdict(int)

    def add(self, name: str, mean: torch.Tensor | float, tokens: int) -> None:
        """A part's mean over its `tokens`; a part without tokens says nothing."""
        if tokens:
            self._sums[name] += mean * tokens
            self._counts[name] += tokens

    def read(self) -> dict[str, float]:
        """The means of all processes."""
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        own = [(name, float(total), self._counts[name]) for name, total in self._sums.items()]
        for name, total, number in processes.gather(own):
            sums[name] += total
            counts[name] += number
        return {name: total / counts[name] for name, total in sums.items()}


class Extremes:
    """The smallest and the largest value of each name, as `NAME/min` and `NAME/max`."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def add(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Values [B, T] or [B, 1] of the tokens of `mask` [B, T]."""
        if bool(mask.any()):
            chosen = values.detach().expand(mask.shape)[mask]
            self.add_value(f"{name}/min", chosen.min().item(), largest=False)
            self.add_value(f"{name}/max", chosen.max().item(), largest=True)

    def add_value(self, name: str, value: float, largest: bool) -> None:
        better = max if largest else min
        self._values[name] = better(value, self._values.get(name, value))

    def read(self) -> dict[str, float]:
        """The extremes of all processes."""
        together: dict[str, list[float]] = defaultdict(list)
        for name, value in processes.gather(list(self._values.items())):
            together[name].append(value)
        return {name: (max if name.endswith("max") else min)(values) for name, values in together.items()}


def rollout_metrics(groups: Sequence[Group], names: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    """What the sampled completions say; a mean over no verdicts at all is left out."""
    completions = [c for group in groups for c in group.completions]
    totals = [[t for t in group.totals(tuple(weights)) if t is not None] for group in groups]
    metrics = _mean("reward", [t for group in totals for t in group])
    metrics |= _mean("reward_std", [statistics.stdev(group) for group in totals if len(group) > 1])
    for column, name in enumerate(names):
        verdicts = [row[column] for group in groups for row in group.rewards]
        present = [v for v in verdicts if v is not None]
        metrics |= _mean(f"rewards/{name}/mean", present)
        metrics |= {f"rewards/{name}/std": statistics.stdev(present)} if len(present) > 1 else {}
    metrics |= _mean("frac_reward_zero_std", [float(all_equal(group)) for group in totals])
    rates = [rate for rate in map(success_rate, groups) if rate is not None]
    metrics |= _mean("frac_all_right", [float(rate == 1) for rate in rates])
    metrics |= _mean("frac_all_wrong", [float(rate == 0) for rate in rates])
    metrics |= _mean("frac_no_verdict", [float(all(r is None for r in row)) for g in groups for row in g.rewards])
    lengths = [len(c.ids) for c in completions]
    metrics |= _mean("completions/mean_length", lengths)
    metrics |= {"completions/min_length": min(lengths), "completions/max_length": max(lengths)} if lengths else {}
    metrics |= _mean("completions/mean_terminated_length", [len(c.ids) for c in completions if not c.truncated])
    metrics |= _mean("completions/clipped_ratio", [float(c.truncated) for c in completions])
    return metrics


def _mean(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: math.fsum(values) / len(values)} if values else {}
