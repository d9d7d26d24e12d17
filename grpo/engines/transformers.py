"""Sampling with the model's own `generate`, in this process."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.groups import Completion, Task
from grpo.policy import Policy
from grpo.rollout import sample
from grpo.sampler import Sampling


class TransformersEngine:
    def generate(
        self,
        policy: Policy,
        tasks: Sequence[Task],
        temperatures: Sequence[float],
        sampling: Sampling,
        max_completion_length: int,
        batch_size: int,
    ) -> list[list[Completion]]:
        return sample(policy, tasks, len(temperatures), max_completion_length, temperatures[0], batch_size)
