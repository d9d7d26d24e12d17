"""Which sampled groups are trained on: what to do with groups whose completions all have the same advantage, 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from grpo.advantages import AdvantageConfig, completion_advantages
from grpo.errors import InputError
from grpo.groups import Group, Task
from grpo.truncation import is_masked

DEAD_GROUPS = ("keep", "drop", "resample")


@dataclass(frozen=True)
class Selected:
    """The groups to train on, and those that were sampled and left out."""

    groups: list[Group]
    discarded: list[Group]
    dead: int
    """Groups without a signal among all that were sampled, those that were kept included."""
    rounds: int

    def metrics(self) -> dict[str, float]:
        """What the selection cost, for the log."""
        completions = [c for group in self.discarded for c in group.completions]
        return {
            "sampling/rounds": float(self.rounds),
            "sampling/dead_groups": float(self.dead),
            "sampling/discarded_groups": float(len(self.discarded)),
            "sampling/discarded_completions": float(len(completions)),
            "sampling/discarded_tokens": float(sum(len(c.ids) for c in completions)),
        }


def is_dead(
    group: Group,
    weights: Sequence[float],
    config: AdvantageConfig | None = None,
    mask_truncated_completions: bool = False,
) -> bool:
    """Whether no completion of the group would move the policy: each has advantage 0 or none, or is masked."""
    (advantages,) = completion_advantages([group.rewards], weights, config)
    return not any(
        advantage and not is_masked(completion, mask_truncated_completions)
        for advantage, completion in zip(advantages, group.completions, strict=True)
    )


def select(
    sample: Callable[[list[Task]], list[Group]],
    tasks: Iterator[Task],
    wanted: int,
    dead: Callable[[Group], bool],
    dead_groups: str = "keep",
    max_rounds: int = 1,
) -> Selected:
    """Sample the groups of one step, of `wanted` questions taken from `tasks`.

    `dead_groups` says what becomes of a group for which `dead` is true:
    "keep": it is trained on like any other (it still has a KL term, and counts in the means).
    "drop": it is left out; fewer groups than wanted remain, perhaps none.
    "resample": it is replaced by a group of the next question (dynamic sampling, DAPO, arXiv 2503.14476). `sample`
    is called at most `max_rounds` times, each time for as many questions as are still missing, so that a data set
    without any signal ends too. Places that are then still empty are filled with the dead groups that came
    first: a step always has `wanted` groups, and the same weight a token whatever the luck of the sampler.

    `tasks` may end: the step then has what there was. `sample` returns one group a task.
    Raises InputError for another `dead_groups` and for `max_rounds` below 1.
    """
    if dead_groups not in DEAD_GROUPS:
        raise InputError(f"dead_groups is {dead_groups!r}; it must be 'keep', 'drop' or 'resample'")
    if max_rounds < 1:
        raise InputError(f"max_rounds is {max_rounds}; it must be at least 1")
    chosen: list[Group] = []
    without_signal: list[Group] = []
    rounds = 0
    while len(chosen) < wanted and rounds < (max_rounds if dead_groups == "resample" else 1):
        asked = list(islice(tasks, wanted - len(chosen)))
        if not asked:
            break
        groups = sample(asked)
        if len(groups) != len(asked):
            raise ValueError(f"sample returned {len(groups)} groups for {len(asked)} tasks")
        rounds += 1
        is_kept = [dead_groups == "keep" or not dead(group) for group in groups]
        chosen += [group for group, kept in zip(groups, is_kept, strict=True) if kept]
        without_signal += [group for group, kept in zip(groups, is_kept, strict=True) if not kept]
    count = sum(map(dead, chosen)) if dead_groups == "keep" else len(without_signal)
    fillers = wanted - len(chosen) if dead_groups == "resample" else 0
    return Selected(chosen + without_signal[:fillers], without_signal[fillers:], count, rounds)
