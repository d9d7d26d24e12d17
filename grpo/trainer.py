"""The training loop: policy -> rollout -> rewards -> groups and advantages -> loss -> step."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from grpo.advantages import group_advantages
from grpo.batch import Batch, TrainSequence, Window, collate, micro_batches, window_share
from grpo.config import TrainConfig
from grpo.groups import Group, Task
from grpo.loss_path import batch_logps, batch_loss, choose_loss_path
from grpo.metrics import TokenMeans, rollout_metrics
from grpo.policy import Policy
from grpo.rewards import Reward, score
from grpo.rollout import sample
from grpo_kernels.losses import GRPOLossOutput

CLIP_METRICS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


@dataclass(frozen=True)
class Step:
    """One batch of completions, and what training on it measured."""

    groups: list[Group]
    metrics: dict[str, float]


@dataclass
class MicroBatch:
    """Completions of one forward pass. Without `learns` they have no gradient: it is for the metrics."""

    batch: Batch
    size: Window
    learns: bool
    ref_logps: torch.Tensor | None = None  # [B, T]
    old_logps: torch.Tensor | None = None  # [B, T]; None while the policy is the one that sampled


class Trainer:
    """GRPO on `tasks`: every `step` samples groups, judges them and updates the adapters."""

    def __init__(self, config: TrainConfig, policy: Policy, tasks: Sequence[Task], rewards: Sequence[Reward]) -> None:
        self.config = config
        self.policy = policy
        self.rewards = rewards
        self.loss_config = config.loss_config()
        self.loss_path, _ = choose_loss_path(config.loss_path, policy)
        self.optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay,
        )
        self.steps_done = 0
        self._tasks = endless(tasks, config.seed)

    def step(self) -> Step:
        started = time.perf_counter()
        groups = self.rollout([next(self._tasks) for _ in range(self.config.questions_per_step)])
        metrics = rollout_metrics(groups, [r.name for r in self.rewards], self.config.weights)
        metrics |= self.update(groups)
        tokens = sum(len(c.ids) for group in groups for c in group.completions)
        metrics["tokens_per_second"] = tokens / (time.perf_counter() - started)
        self.steps_done += 1
        return Step(groups, {"step": self.steps_done, **metrics})

    def rollout(self, tasks: Sequence[Task]) -> list[Group]:
        """Sample completions of `tasks` and judge them."""
        config = self.config
        sampled = sample(
            self.policy,
            tasks,
            config.num_generations,
            config.max_completion_length,
            config.temperature,
            config.rollout_batch_size,
        )
        verdicts = iter(score(self.rewards, [completion for group in sampled for completion in group]))
        return [
            Group(f"{self.steps_done + 1}.{n}", task, tuple(group), tuple(next(verdicts) for _ in group))
            for n, (task, group) in enumerate(zip(tasks, sampled, strict=True), 1)
        ]

    def update(self, groups: Sequence[Group]) -> dict[str, float]:
        """`num_iterations` optimizer steps on the completions of `groups`."""
        sequences = training_sequences(groups, self.config.weights, self.config.scale_rewards)
        whole = Window.of(sequences)
        learning_rate = self.set_learning_rate()
        means = TokenMeans()
        parts = self.micro_batches(sequences)
        for iteration in range(self.config.num_iterations):
            for part in parts if iteration == 0 else [p for p in parts if p.learns]:
                output = self.accumulate(part, whole)
                if part.old_logps is None:
                    part.old_logps = output.logps
                for name in CLIP_METRICS if iteration else (*CLIP_METRICS, "kl", "entropy"):
                    if name in output.metrics:
                        means.add(name, output.metrics[name], part.size.tokens)
            grad_norm = self.optimizer_step()
        return {**means.read(), "grad_norm": grad_norm, "learning_rate": learning_rate}

    def micro_batches(self, sequences: Sequence[TrainSequence]) -> list[MicroBatch]:
        """The sequences that have a gradient in micro-batches of their own: the others cost no backward."""
        needs_reference = self.config.beta != 0 or self.config.report_kl
        learning = [s for s in sequences if s.advantage != 0 or self.config.beta != 0]
        idle = [s for s in sequences if s.advantage == 0 and self.config.beta == 0]
        parts = []
        for kind, learns in ((learning, True), (idle, False)):
            for rows in micro_batches(kind, self.config.per_device_train_batch_size):
                batch = collate(rows, self.policy.pad_id, self.policy.device)
                ref_logps = self.reference_logps(batch) if needs_reference else None
                parts.append(MicroBatch(batch, Window.of(rows), learns, ref_logps))
        return parts

    def accumulate(self, part: MicroBatch, whole: Window) -> GRPOLossOutput:
        """Add the gradient of one micro-batch to the adapters'."""
        num_items, share = window_share(self.config.loss_type, part.size, whole)
        with torch.set_grad_enabled(part.learns):
            output = batch_loss(
                self.policy,
                part.batch,
                self.loss_path,
                old_logps=part.old_logps,
                ref_logps=part.ref_logps,
                num_items_in_batch=num_items,
                config=self.loss_config,
            )
            if part.learns:
                (output.loss * share).backward()
        return output

    def reference_logps(self, batch: Batch) -> torch.Tensor:
        """Log-probabilities [B, T] under the base model: for the loss, or only to report the KL."""
        with self.policy.as_reference():
            return batch_logps(self.policy, batch, self.loss_path, self.config.temperature)

    def set_learning_rate(self) -> float:
        config = self.config
        factor = learning_rate_factor(self.steps_done, config.warmup_steps, config.max_steps, config.min_lr_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * factor
        return config.learning_rate * factor

    def optimizer_step(self) -> float:
        """Clip, update, and forget the gradient; returns its norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
        if not torch.isfinite(norm):
            raise FloatingPointError(
                f"the gradient of step {self.steps_done + 1} has norm {norm.item()}: lower --learning-rate"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm.item()


def training_sequences(groups: Sequence[Group], weights: tuple[float, ...], scale_rewards: str) -> list[TrainSequence]:
    """The completions that have a reward, with their advantages; those without are not trained on."""
    advantages = group_advantages([group.totals(weights) for group in groups], scale_rewards)
    return [
        TrainSequence(group.task.prompt_ids, completion.ids, advantage)
        for group, values in zip(groups, advantages, strict=True)
        for completion, advantage in zip(group.completions, values, strict=True)
        if advantage is not None
    ]


def endless(tasks: Sequence[Task], seed: int) -> Iterator[Task]:
    """Every task once an epoch, for ever, in an order that each epoch and seed has of its own."""
    order = random.Random(seed)
    while True:
        yield from order.sample(tasks, len(tasks))


def learning_rate_factor(step: int, warmup_steps: int, max_steps: int, min_lr_rate: float) -> float:
    """Share of the peak at `step` (from 0): linear warm-up, then linear decay that ends at `min_lr_rate`."""
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(max_steps - 1 - warmup_steps, 1)
    return 1 - (1 - min_lr_rate) * min(progress, 1.0)
