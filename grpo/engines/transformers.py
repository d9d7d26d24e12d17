"""Sampling with the model's own `generate`, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.groups import Completion, Done, Task
from grpo.merging import merged_if
from grpo.policy import Policy
from grpo.rollout import sample
from grpo.sampler import Sampling


class TransformersEngine:
    """`merge`: whether the adapters are merged meanwhile; see `grpo.merging`."""

    def __init__(self, merge: bool | None = None) -> None:
        self.merge = merge

    def generate(
        self,
        policy: Policy,
        tasks: Sequence[Task],
        temperatures: Sequence[float],
        sampling: Sampling,
        max_completion_length: int,
        batch_size: int,
        done: Done | None = None,
    ) -> list[list[Completion]]:
        with merged_if(policy, self.merge):
            return sample(policy, tasks, temperatures, max_completion_length, batch_size, sampling, done)
