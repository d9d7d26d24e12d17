"""Judging completions while the next ones are sampled."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from grpo.groups import Completion
from grpo.rewards import RewardRunner
from grpo.rewards.runner import Scores


class Verification:
    """Judges what is added, in a thread of its own where every reward may run beside the sampler, else at the end.

    A function of the user's own waits for the end: it may use the random numbers, the device or the model that the
    sampler uses, and expects to see the whole batch. `completions` are all that were added, in that order.
    """

    def __init__(self, rewards: RewardRunner) -> None:
        self.rewards = rewards
        self.beside_sampling = all(reward.beside_sampling for reward in rewards.rewards)
        self.completions: list[Completion] = []
        self._thread = ThreadPoolExecutor(1)
        self._waiting: list[Completion] = []
        self._running: list[Future[Scores]] = []

    def __enter__(self) -> Verification:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    def add(self, completions: Sequence[Completion]) -> None:
        """What comes while others are being judged is judged next, all at once."""
        self.completions += completions
        self._waiting += completions
        if self.beside_sampling and all(future.done() for future in self._running):
            self._running.append(self._thread.submit(self.rewards.score, self._waiting))
            self._waiting = []

    def finish(self) -> Scores:
        """The scores of all `completions`."""
        done = [future.result() for future in self._running]
        done.append(self.rewards.score(self._waiting))
        return Scores(
            [row for scores in done for row in scores.rows],
            [parts for scores in done for parts in scores.parts],
            [failure for scores in done for failure in scores.failures],
        )
