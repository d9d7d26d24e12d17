"""Rewards on completions: what they return is checked, and one that fails on a sample leaves its siblings alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.errors import InputError
from grpo.groups import Completion
from grpo.rewards.calls import OverTime, call
from grpo.rewards.limits import call_within
from grpo.rewards.pool import close_shared_pools
from grpo.rewards.reward import Reward
from grpo.rewards.verdicts import Verdict, checked


@dataclass(frozen=True)
class Failure:
    """A verdict that is missing because its reward failed. `sample` is a place among the completions."""

    reward: str
    sample: int
    reason: str


@dataclass(frozen=True)
class Scores:
    """`rows`: a row a completion, a column a reward, None for no verdict. `parts`: for each completion what its
    verdicts are made of, as "REWARD/PART". `failures`: why verdicts are missing."""

    rows: list[tuple[float | None, ...]]
    parts: list[dict[str, float | None]]
    failures: list[Failure]


class RewardRunner:
    """Judges completions.

    `on_error`: a reward that fails on a sample gives it no verdict ("none"), or ends the run with an InputError
    ("stop"). `timeout_s`: seconds that one call of a function of the user's own may take (see `grpo.rewards.limits`);
    built-in rewards have limits of their own.
    """

    def __init__(self, rewards: Sequence[Reward], on_error: str = "none", timeout_s: float | None = None) -> None:
        self.rewards = list(rewards)
        self.on_error = on_error
        self.timeout_s = timeout_s

    def score(self, completions: Sequence[Completion]) -> Scores:
        """Raises InputError where a verdict is no finite number and not None, and what `on_error` says."""
        columns: list[list[Verdict]] = []
        failures: list[Failure] = []
        for reward in self.rewards if completions else ():
            verdicts, failed = self._column(reward, completions)
            columns.append(verdicts)
            failures += failed
        rows = list(zip(*columns, strict=True)) if columns else []
        return Scores(
            [tuple(verdict.total for verdict in row) for row in rows],
            [
                {
                    f"{reward.name}/{name}": value
                    for reward, verdict in zip(self.rewards, row, strict=True)
                    for name, value in verdict.parts.items()
                }
                for row in rows
            ],
            failures,
        )

    def _column(self, reward: Reward, completions: Sequence[Completion]) -> tuple[list[Verdict], list[Failure]]:
        """All at once; where that fails, one by one, to find out on which."""
        try:
            return self._verdicts(reward, completions), []
        except InputError:
            raise
        except Exception as error:
            if self.on_error == "stop":
                raise InputError(f"reward {reward.name} failed: {reason_of(error)}") from error
        verdicts: list[Verdict] = []
        failures = []
        for number, completion in enumerate(completions):
            try:
                verdicts += self._verdicts(reward, [completion])
            except InputError:
                raise
            except Exception as error:
                verdicts.append(Verdict(None, {}))
                failures.append(Failure(reward.name, number, reason_of(error)))
        return verdicts, failures

    def _verdicts(self, reward: Reward, completions: Sequence[Completion]) -> list[Verdict]:
        limited = self.timeout_s is not None and not reward.beside_sampling
        values = call_within(reward, completions, self.timeout_s or 0.0) if limited else call(reward, completions)
        return checked(reward, values, completions)

    def close(self) -> None:
        """End the processes that rewards started; they start again when they are needed."""
        close_shared_pools()


def reason_of(error: Exception) -> str:
    """One line."""
    if isinstance(error, OverTime):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
