"""What GRPO compares: completions of one question, asked in one way and judged by one set of rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from grpo.errors import InputError
from grpo.fingerprint import fingerprint

Message = dict[str, str]
Prompt = str | list[Message]
Parts = Mapping[str, float | None]


@dataclass(frozen=True)
class Task:
    """A question as it is put to the model, and the rules that judge its completions.

    `id` identifies the question: tasks with the same prompt text and different ids are different questions.
    `rules` are the names and versions of the rewards, such as ("numeric@1", "format@1").
    """

    id: str
    system_prompt: str | None
    rules: tuple[str, ...]
    prompt: Prompt = field(compare=False)
    prompt_ids: tuple[int, ...] = field(compare=False)
    columns: Mapping[str, Any] = field(compare=False, default_factory=dict)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the question, of the prompt as it was rendered with its system prompt, of the rules and of the data
        row; not of `id`, so that it is the same wherever the data lies.
        """
        return fingerprint(self.prompt, self.system_prompt, self.prompt_ids, self.rules, dict(self.columns))


@dataclass(frozen=True)
class Completion:
    """One sampled answer. `ids` are the sampled tokens, up to and including the end-of-sequence token.

    `temperature` is the one it was sampled at. `sampler_logps` are the sampler's own log-probabilities of `ids`, on
    the distribution it sampled from, where it gave them.
    """

    task: Task
    ids: tuple[int, ...]
    text: str
    truncated: bool
    """No end-of-sequence token came before the length limit."""
    temperature: float = 1.0
    sampler_logps: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.sampler_logps is not None and len(self.sampler_logps) != len(self.ids):
            raise ValueError(f"a completion has {len(self.ids)} tokens and {len(self.sampler_logps)} sampler_logps")


Done = Callable[[Sequence[Completion]], None]


@dataclass(frozen=True)
class Group:
    """One task's completions and their rewards: a row a completion, a column a rule, None for no verdict.

    `parts`: for each completion what a reward is made of, as "REWARD/PART"; empty where none is made of parts.
    """

    id: str
    task: Task
    completions: tuple[Completion, ...]
    rewards: tuple[tuple[float | None, ...], ...]
    parts: tuple[Parts, ...] = ()

    def __post_init__(self) -> None:
        if not self.completions:
            raise ValueError(f"group {self.id} has no completions")
        for number, completion in enumerate(self.completions):
            # The fingerprint comes last: it covers what the others do not name, the rendered prompt and the data row.
            for name in ("id", "system_prompt", "rules", "fingerprint"):
                theirs, ours = getattr(completion.task, name), getattr(self.task, name)
                if theirs != ours:
                    raise ValueError(
                        f"group {self.id} mixes tasks: completion {number} has {name} {theirs!r}, the group {ours!r}"
                    )
        if len(self.rewards) != len(self.completions):
            raise ValueError(f"group {self.id} has {len(self.completions)} completions and {len(self.rewards)} rewards")
        if len(self.parts) not in (0, len(self.completions)):
            raise ValueError(f"group {self.id} has {len(self.completions)} completions and {len(self.parts)} parts")
        for row in self.rewards:
            if len(row) != len(self.task.rules):
                raise ValueError(f"group {self.id} has {len(self.task.rules)} rules and a reward row of {len(row)}")
        for number, row in enumerate(self.rewards):
            for rule, reward in zip(self.task.rules, row, strict=True):
                if reward is not None and not math.isfinite(reward):
                    raise InputError(
                        f"reward {rule} is {reward} for completion {number} of group {self.id} ({self.task.id}): "
                        "it must be a finite number or None"
                    )

    @property
    def correctness(self) -> list[float | None]:
        """How right each completion is; see `correctness`."""
        parts = self.parts or ({},) * len(self.rewards)
        return [correctness(self.task.rules, row, own) for row, own in zip(self.rewards, parts, strict=True)]

    def totals(self, weights: tuple[float, ...]) -> list[float | None]:
        """The weighted sum of each completion's rewards; None where no rule gave a verdict."""
        return [weighted_total(row, weights) for row in self.rewards]

    def with_rule(self, rule: str, rewards: Sequence[float]) -> Group:
        """This group with one more rule, such as a length penalty, and its reward for every completion.

        A completion without any verdict so far has none from this rule either: a penalty alone is no judgement.
        """
        task = replace(self.task, rules=(*self.task.rules, rule))
        return replace(
            self,
            task=task,
            completions=tuple(replace(completion, task=task) for completion in self.completions),
            rewards=tuple(
                (*row, None if all(r is None for r in row) else reward)
                for row, reward in zip(self.rewards, rewards, strict=True)
            ),
        )


def correctness(rules: Sequence[str], row: Sequence[float | None], parts: Parts) -> float | None:
    """How right a completion is, of which 1 is fully: what the first reward says, or, where it is made of parts, the
    first of them."""
    reward = f"{rules[0].partition('@')[0]}/"
    return next((value for part, value in parts.items() if part.startswith(reward)), row[0])


def is_right(correctness: float | None) -> bool:
    """Full marks; no verdict is none."""
    return correctness is not None and correctness >= 1.0


def weighted_total(row: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The weighted sum of one completion's rewards; None where no rule gave a verdict."""
    verdicts = [weight * reward for weight, reward in zip(weights, row, strict=True) if reward is not None]
    return math.fsum(verdicts) if verdicts else None


def group_temperatures(temperatures: Sequence[float], num_generations: int) -> tuple[float, ...]:
    """The temperature of each completion of a group: `temperatures` in turn, so that each is used equally often,
    the first ones once more where `num_generations` is no multiple of their number.

    Raises InputError for no temperatures, or one that is not a positive finite number.
    """
    if not temperatures:
        raise InputError("temperatures is empty; it must have at least one temperature")
    for temperature in temperatures:
        if not (math.isfinite(temperature) and temperature > 0):
            raise InputError(f"temperatures has {temperature}; each must be a finite number above 0")
    return tuple(temperatures[i % len(temperatures)] for i in range(num_generations))
