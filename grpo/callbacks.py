"""What a program of one's own may do while a trainer runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.evaluate import Evaluation
    from grpo.groups import Group
    from grpo.trainer import GRPOTrainer


class Callback:
    """Override what is wanted. Every process calls every method; `trainer.is_main` tells the first one.

    A method may set `trainer.stop = True`: training then ends after the step, as if it had been interrupted.
    """

    def on_rollout(self, trainer: GRPOTrainer, groups: Sequence[Group]) -> None:
        """New completions were sampled, judged and chosen."""

    def on_step(self, trainer: GRPOTrainer, metrics: dict[str, Any]) -> None:
        """An optimizer step is done, and its row of metrics complete."""

    def on_evaluation(self, trainer: GRPOTrainer, evaluation: Evaluation) -> None:
        """The held-out tasks were answered."""

    def on_save(self, trainer: GRPOTrainer, path: Path) -> None:
        """A checkpoint is complete in the folder `path`."""
