"""Engines sample completions: one small interface, chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from grpo.groups import Completion, Done, Task

if TYPE_CHECKING:
    from grpo.config import TrainConfig
    from grpo.policy import Policy
    from grpo.sampler import Sampling


class Engine(Protocol):
    """Samples completions under the policy as it is now."""

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
        """For every task a completion at each of `temperatures`, in their order.

        `sampling` says from which tokens; its own temperature is not used. At most `batch_size` sequences are run at
        once. `done` is called with each group, in the order of the tasks, as soon as it is complete.
        """
        ...


def make_engine(config: TrainConfig) -> Engine:
    """The engine that the configuration names."""
    if config.engine == "server":
        from grpo.engines.server import ServerEngine

        return ServerEngine(config.server_url or "")
    if config.engine == "continuous":
        from grpo.engines.continuous import ContinuousEngine

        return ContinuousEngine(config.merge_lora)
    from grpo.engines.transformers import TransformersEngine

    return TransformersEngine(config.merge_lora)
