"""What one sampling gives to train on, for one optimizer step or several, and how much of it is used up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo import processes
from grpo.advantages import AdvantageConfig, completion_advantages
from grpo.batch import Totals, TrainSequence
from grpo.groups import Group
from grpo.learner import Example, StepData
from grpo.truncation import is_masked


@dataclass
class Window:
    """The data of `len(steps)` optimizer steps, each taken `iterations` times; `taken` counts those done."""

    steps: list[StepData]
    iterations: int
    taken: int = 0

    @property
    def is_used_up(self) -> bool:
        return self.taken >= len(self.steps) * self.iterations

    @property
    def place(self) -> int:
        """Which of the steps comes next."""
        return self.taken % len(self.steps)

    @property
    def is_again(self) -> bool:
        """Whether the next step's sequences were trained on before."""
        return self.taken >= len(self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Numbers, lists and tensors."""
        return dataclasses.asdict(self)

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Window:
        steps = [
            StepData(
                [_sequence(s) for s in step["sequences"]],
                Totals(**step["whole"]),
                [Example(tuple(e["prompt_ids"]), tuple(e["completion_ids"])) for e in step["examples"]],
                step["example_tokens"],
            )
            for step in state["steps"]
        ]
        return cls(steps, state["iterations"], state["taken"])


def _sequence(state: dict[str, Any]) -> TrainSequence:
    logps = state["sampler_logps"]
    ids = {name: tuple(state[name]) for name in ("prompt_ids", "completion_ids")}
    return TrainSequence(**state | ids | {"sampler_logps": None if logps is None else tuple(logps)})


def training_sequences(
    groups: Sequence[Group],
    weights: Sequence[float],
    advantages: AdvantageConfig | None = None,
    mask_truncated_completions: bool = False,
    mixed_temperatures: bool = False,
) -> list[TrainSequence]:
    """The completions that have a reward, with their advantages; those without are not trained on."""
    values = completion_advantages([group.rewards for group in groups], weights, advantages)
    return [
        TrainSequence(
            group.task.prompt_ids,
            completion.ids,
            advantage,
            completion.temperature if mixed_temperatures else None,
            is_masked(completion, mask_truncated_completions),
            completion.sampler_logps,
        )
        for group, row in zip(groups, values, strict=True)
        for completion, advantage in zip(group.completions, row, strict=True)
        if advantage is not None
    ]


def split_steps(sequences: Sequence[TrainSequence], examples: Sequence[Example], steps: int) -> list[StepData]:
    """The sequences in as many equal runs as there are optimizer steps, of each this process's share."""
    size = max(-(-len(sequences) // steps), 1)
    runs = [sequences[n * size : (n + 1) * size] for n in range(steps)]
    per_step = -(-len(examples) // steps)
    imitated = [examples[n * per_step : (n + 1) * per_step] for n in range(steps)]
    return [
        StepData(
            list(processes.share(run)),
            Totals.of(run),
            list(processes.share(some)),
            sum(len(e.completion_ids) for e in some),
        )
        for run, some in zip(runs, imitated, strict=True)
    ]
