"""What GRPO compares: completions of one question, asked in one way and judged by one set of rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, str]
Prompt = str | list[Message]


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


@dataclass(frozen=True)
class Completion:
    """One sampled answer. `ids` are the sampled tokens, up to and including the end-of-sequence token."""

    task: Task
    ids: tuple[int, ...]
    text: str
    truncated: bool
    """No end-of-sequence token came before the length limit."""


@dataclass(frozen=True)
class Group:
    """One task's completions and their rewards: a row a completion, a column a rule, None for no verdict."""

    id: str
    task: Task
    completions: tuple[Completion, ...]
    rewards: tuple[tuple[float | None, ...], ...]

    def __post_init__(self) -> None:
        if not self.completions:
            raise ValueError(f"group {self.id} has no completions")
        for number, completion in enumerate(self.completions):
            for name in ("id", "system_prompt", "rules"):
                theirs, ours = getattr(completion.task, name), getattr(self.task, name)
                if theirs != ours:
                    raise ValueError(
                        f"group {self.id} mixes tasks: completion {number} has {name} {theirs!r}, the group {ours!r}"
                    )
        if len(self.rewards) != len(self.completions):
            raise ValueError(f"group {self.id} has {len(self.completions)} completions and {len(self.rewards)} rewards")
        for row in self.rewards:
            if len(row) != len(self.task.rules):
                raise ValueError(f"group {self.id} has {len(self.task.rules)} rules and a reward row of {len(row)}")

    def totals(self, weights: tuple[float, ...]) -> list[float | None]:
        """The weighted sum of each completion's rewards; None where no rule gave a verdict."""
        return [_weighted(row, weights) for row in self.rewards]


def _weighted(row: tuple[float | None, ...], weights: tuple[float, ...]) -> float | None:
    verdicts = [weight * reward for weight, reward in zip(weights, row, strict=True) if reward is not None]
    return sum(verdicts) if verdicts else None
