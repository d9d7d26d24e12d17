"""The probe: a few questions sampled with the same seed again and again, so that nothing but the policy changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from grpo.config import TrainConfig
from grpo.evaluate import Evaluation, Sampled, evaluate_samples, judged
from grpo.groups import Task
from grpo.intervals import pass_at_k
from grpo.policy import Policy
from grpo.rewards import RewardRunner
from grpo.rollout import sample


def probe_tasks(tasks: Sequence[Task], number: int) -> Sequence[Task]:
    """At most `number` of the tasks, spread evenly over their order."""
    number = min(number, len(tasks))
    return [tasks[n * len(tasks) // number] for n in range(number)]


def probe(config: TrainConfig, policy: Policy, tasks: Sequence[Task], rewards: RewardRunner) -> Evaluation:
    """One answer to each task at the run's temperature, judged."""
    with seeded(config.seed):
        groups = sample(policy, tasks, [config.temperature], config.max_completion_length, config.rollout_batch_size)
    return judged(rewards, [completion for group in groups for completion in group])


def several_answers(config: TrainConfig, policy: Policy, tasks: Sequence[Task], rewards: RewardRunner) -> Sampled:
    """`eval_samples` answers to each task at the run's temperature, judged."""
    length, batch = config.max_completion_length, config.rollout_batch_size
    with seeded(config.seed):
        return evaluate_samples(policy, tasks, rewards, length, batch, config.eval_samples, config.temperature)


def pass_at_metrics(correct: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Mean pass@k of the tasks, for k = 1, 2, 4, ... and the number of answers to each."""
    number = len(correct[0])
    ks = sorted({number, *(2**n for n in range(number.bit_length()))})
    return {f"eval_pass_at_{k}": sum(pass_at_k(number, sum(row), k) for row in correct) / len(correct) for k in ks}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from `seed`; afterwards those of the run go on as if nothing had been drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
