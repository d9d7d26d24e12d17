"""Means and extremes over tokens: sums over counts, of the whole step and all processes."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from grpo import processes

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
