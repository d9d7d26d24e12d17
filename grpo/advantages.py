"""Group-relative advantages: how much better a completion did than the others of its group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.errors import InputError
from grpo.groups import weighted_total

# Rewards that differ by less than this share of the largest are one reward, computed in different orders.
SAME = 1e-6
# What is left of parts near 1 that cancel, such as 0.1 * 3 - 0.3.
ROUNDING = 1e-12

CHOICES = {
    "scale_rewards": ("group", "batch", "none"),
    "advantage_estimator": ("grpo", "rloo"),
    "std_estimator": ("sample", "population"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
}


@dataclass(frozen=True)
class AdvantageConfig:
    """How rewards become advantages.

    `scale_rewards`: advantages are divided by the standard deviation of their group ("group"), of all rewards of
    all groups ("batch"), or not at all ("none").
    `advantage_estimator`: a reward is compared with the mean of its group ("grpo") or with the mean of the others
    of its group ("rloo", arXiv 2402.14740).
    `std_estimator`: the standard deviation divides by n - 1 ("sample") or by n ("population").
    `multi_objective_aggregation`: with several rewards, sum them and compare the totals ("sum_then_normalize"),
    or compare within each reward and sum the advantages ("normalize_then_sum", see `decoupled_advantages`).

    Raises InputError for a value that is none of these, and for "normalize_then_sum" with another scale or
    estimator than "group" and "grpo", which it would have to ignore.
    """

    scale_rewards: str = "group"
    advantage_estimator: str = "grpo"
    std_estimator: str = "sample"
    multi_objective_aggregation: str = "sum_then_normalize"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        if self.multi_objective_aggregation == "normalize_then_sum":
            for name, only in (("scale_rewards", "group"), ("advantage_estimator", "grpo")):
                if getattr(self, name) != only:
                    raise InputError(
                        f"{name} is {getattr(self, name)!r}; it must be {only!r} where "
                        "multi_objective_aggregation is 'normalize_then_sum'"
                    )


def completion_advantages(
    groups: Sequence[Sequence[Sequence[float | None]]],
    weights: Sequence[float],
    config: AdvantageConfig | None = None,
) -> list[list[float | None]]:
    """The advantage of every completion, from the rewards of groups: `groups[g][completion][rule]`.

    `weights` has one number a rule. Returns `[g][completion]`; None where no rule gave a verdict.
    """
    config = config or AdvantageConfig()
    if config.multi_objective_aggregation == "normalize_then_sum":
        return decoupled_advantages(groups, weights, config.std_estimator)
    totals = [[weighted_total(row, weights) for row in rows] for rows in groups]
    return group_advantages(totals, config.scale_rewards, config.advantage_estimator, config.std_estimator)


def group_advantages(
    groups: Sequence[Sequence[float | None]],
    scale_rewards: str = "group",
    advantage_estimator: str = "grpo",
    std_estimator: str = "sample",
) -> list[list[float | None]]:
    """Advantages of the rewards in `groups`, in the same layout. The options are those of `AdvantageConfig`.

    A reward of None is excluded: it has no advantage (None) and does not count in the mean or the deviation.
    A group whose rewards are all equal, or that has one reward, gets exactly 0.
    Raises InputError for a reward that is not finite and for an unknown option.
    """
    _check_choice("scale_rewards", scale_rewards, CHOICES["scale_rewards"])
    _check_choice("advantage_estimator", advantage_estimator, CHOICES["advantage_estimator"])
    _check_choice("std_estimator", std_estimator, CHOICES["std_estimator"])
    for number, rewards in enumerate(groups):
        _check_finite(rewards, f"group {number}")
    batch_scale = _deviation([r for rewards in groups for r in rewards if r is not None], std_estimator)

    def of_group(rewards: Sequence[float | None]) -> list[float | None]:
        differences = _differences(rewards, advantage_estimator)
        if scale_rewards == "none" or not any(differences):
            return differences
        in_group = scale_rewards == "group"
        scale = _deviation([r for r in rewards if r is not None], std_estimator) if in_group else batch_scale
        return [None if d is None else d / scale for d in differences]

    return [of_group(rewards) for rewards in groups]


def decoupled_advantages(
    groups: Sequence[Sequence[Sequence[float | None]]], weights: Sequence[float], std_estimator: str = "sample"
) -> list[list[float | None]]:
    """Advantages from `groups[g][completion][rule]` that keep each rule's own scale out (GDPO, arXiv 2601.05242).

    For completion i of group g and rule k with reward r_ik, mean and deviation taken over group g:

        s_i = sum_k weights[k] * (r_ik - mean_k) / deviation_k        A_i = s_i / deviation of s over all groups

    A rule that is the same throughout the group, and a verdict of None, contribute 0; a completion without any
    verdict has no advantage (None) and counts nowhere. The mean of s over all groups, which the paper subtracts,
    is 0 because it is 0 in every group; leaving it out keeps the advantages of a group without differences at
    exactly 0. Nothing is added to the deviations for the same reason.
    """
    _check_choice("std_estimator", std_estimator, CHOICES["std_estimator"])
    sums = [_normalized_sums(rows, weights, std_estimator, f"group {g}") for g, rows in enumerate(groups)]
    scale = _deviation([s for group in sums for s in group if s is not None], std_estimator)
    return [[None if s is None else (s / scale if s else 0.0) for s in group] for group in sums]


def all_equal(rewards: Sequence[float]) -> bool:
    """Whether these rewards tell the completions apart no better than rounding does."""
    return not rewards or max(rewards) - min(rewards) <= max(SAME * max(abs(r) for r in rewards), ROUNDING)


def _differences(rewards: Sequence[float | None], advantage_estimator: str) -> list[float | None]:
    """Each reward less its baseline; exactly 0 where rewards are equal."""
    present = [r for r in rewards if r is not None]
    if all_equal(present):
        return [None if r is None else 0.0 for r in rewards]
    if advantage_estimator == "rloo":
        others = len(present) - 1
        return [None if r is None else r - math.fsum([*present, -r]) / others for r in rewards]
    mean = math.fsum(present) / len(present)
    return [None if r is None else r - mean for r in rewards]


def _normalized_sums(
    rows: Sequence[Sequence[float | None]], weights: Sequence[float], std_estimator: str, group: str
) -> list[float | None]:
    """s_i of `decoupled_advantages` for one group; exactly 0 where the rules cancel throughout."""
    sums = [0.0] * len(rows)
    for rule, weight in enumerate(weights):
        column = [row[rule] for row in rows]
        _check_finite(column, f"rule {rule} of {group}")
        deviation = _deviation([r for r in column if r is not None], std_estimator)
        for i, difference in enumerate(_differences(column, "grpo")):
            if difference:
                sums[i] += weight * difference / deviation
    if max((abs(s) for s in sums), default=0.0) <= SAME * math.fsum(abs(w) for w in weights):
        sums = [0.0] * len(rows)
    return [
        None if all(r is None for r in row) else s
        for s, row in zip(sums, rows, strict=True)
    ]  # fmt: skip


def _deviation(values: Sequence[float], std_estimator: str) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    count = len(values) - 1 if std_estimator == "sample" else len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / count)


def _check_finite(rewards: Sequence[float | None], where: str) -> None:
    for number, reward in enumerate(rewards):
        if reward is not None and not math.isfinite(reward):
            raise InputError(
                f"the reward of completion {number} in {where} is {reward}; it must be a finite number or None"
            )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        allowed = ", ".join(repr(c) for c in choices[:-1]) + f" or {choices[-1]!r}"
        raise InputError(f"{name} is {value!r}; it must be {allowed}")
