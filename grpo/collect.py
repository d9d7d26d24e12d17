"""From questions to judged groups: sampling, rewards, and the choice of the groups to train on."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from grpo import processes
from grpo.advantages import AdvantageConfig
from grpo.config import TrainConfig
from grpo.difficulty import allocate
from grpo.engines import Engine
from grpo.errors import InputError
from grpo.groups import Completion, Done, Group, Task, group_temperatures
from grpo.policy import Policy
from grpo.questions import Questions
from grpo.rewards import RewardRunner
from grpo.sampler import Sampling
from grpo.selection import Selected, is_dead, select
from grpo.truncation import OVERLONG_RULE, punish_overlong
from grpo.verification import Verification


@dataclass
class Collected:
    """The groups of one sampling and what it took. `failures` are of this process's own completions."""

    selected: Selected
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def groups(self) -> list[Group]:
        return self.selected.groups


class Collector:
    """Samples groups with an engine and judges them. `rules` and `weights` name every column of their rewards."""

    def __init__(
        self, config: TrainConfig, policy: Policy, engine: Engine, rewards: RewardRunner, questions: Questions
    ) -> None:
        self.config = config
        self.policy = policy
        self.engine = engine
        self.rewards = rewards
        self.questions = questions
        self.names = [reward.name for reward in rewards.rewards]
        self.weights = config.reward_weights or (1.0,) * len(self.names)
        if len(self.weights) != len(self.names):
            raise InputError(f"reward_weights has {len(self.weights)} numbers for {len(self.names)} rewards")
        if config.overlong_cache is not None:
            self.names.append(OVERLONG_RULE.partition("@")[0])
            self.weights = (*self.weights, 1.0)
        self.advantages = AdvantageConfig(
            config.scale_rewards,
            config.advantage_estimator,
            config.std_estimator,
            config.multi_objective_aggregation,
        )

    def collect(self, step: int) -> Collected:
        """The groups for the optimizer steps that begin with `step` (from 0), of all processes."""
        config = self.config
        collected = Collected(Selected([], [], 0, 0))
        rounds = 0

        def sample(tasks: list[Task]) -> list[Group]:
            nonlocal rounds
            rounds += 1
            return self.judged(tasks, f"{step + 1}" if rounds == 1 else f"{step + 1}r{rounds}", collected)

        collected.selected = select(
            sample,
            self.questions.for_step(step),
            config.questions_per_step * config.passes_per_generation * processes.count(),
            lambda group: is_dead(group, self.weights, self.advantages, config.mask_truncated_completions),
            config.dead_groups,
            config.max_rounds,
        )
        if self.questions.difficulty is not None:
            self.questions.difficulty.update([*collected.groups, *collected.selected.discarded])
        return collected

    def judged(self, tasks: Sequence[Task], label: str, collected: Collected) -> list[Group]:
        """A group for every task; each process samples and judges its share of them."""
        config = self.config
        sizes = self.group_sizes(tasks)
        own = processes.share(list(zip(range(len(tasks)), tasks, sizes, strict=True)))
        started = time.perf_counter()
        with Verification(self.rewards) as verification:
            sampled = self.sample([task for _, task, _ in own], [size for _, _, size in own], verification.add)
            waiting = time.perf_counter()
            told = {id(completion) for completion in verification.completions}
            # Of an engine that does not tell of groups as they come, all of them.
            verification.add([one for group in sampled for one in group if id(one) not in told])
            scores = verification.finish()
        collected.seconds["rollout"] += waiting - started
        collected.seconds["rewards"] += time.perf_counter() - waiting
        for failure in scores.failures:
            collected.failures[failure.reward] += 1
        places = {id(completion): place for place, completion in enumerate(verification.completions)}
        groups = []
        for (n, task, _), completions in zip(own, sampled, strict=True):
            verdicts = [places[id(completion)] for completion in completions]
            group = Group(
                f"{label}.{n + 1}",
                task,
                tuple(completions),
                tuple(scores.rows[place] for place in verdicts),
                tuple(scores.parts[place] for place in verdicts),
            )
            if config.overlong_cache is not None:
                group = punish_overlong(group, config.max_completion_length, config.overlong_cache)
            groups.append(group)
        return processes.gather(groups)

    def sample(self, tasks: Sequence[Task], sizes: Sequence[int], done: Done) -> list[list[Completion]]:
        """As many completions of each task as `sizes` says; those of one size are sampled together.

        `done` is called with each group as soon as it is complete.
        """
        config = self.config
        sampled: dict[int, list[Completion]] = {}
        # Of a model that is spread over processes, each has to take part in what any of them samples.
        for size in sorted(set(processes.gather(sizes))):
            places = [n for n, s in enumerate(sizes) if s == size]
            groups = self.engine.generate(
                self.policy,
                [tasks[n] for n in places],
                group_temperatures(config.temperatures or (config.temperature,), size),
                Sampling(config.temperature, config.top_p, config.top_k, config.min_p),
                config.max_completion_length,
                config.rollout_batch_size,
                done,
            )
            sampled.update(zip(places, groups, strict=True))
        return [sampled[n] for n in range(len(tasks))]

    def group_sizes(self, tasks: Sequence[Task]) -> list[int]:
        config, difficulty = self.config, self.questions.difficulty
        if config.min_generations is None or config.max_generations is None or difficulty is None:
            return [config.num_generations] * len(tasks)
        weights = [difficulty.weight(task.id) for task in tasks]
        total = config.num_generations * len(tasks)
        return allocate(total, config.min_generations, config.max_generations, weights)
