"""One optimizer step: the loss of its sequences in micro-batches, the gradient of all processes, clipping, AdamW."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grpo import processes
from grpo.batch import Batch, Totals, TrainSequence, collate, micro_batches, window_share
from grpo.config import TrainConfig
from grpo.loss_path import batch_logps, batch_loss, choose_loss_path, sampler_support
from grpo.metrics import Extremes, TokenMeans
from grpo.mismatch import mismatch_metrics
from grpo.optimizer import make_optimizer
from grpo.policy import Policy
from grpo.sampler import Sampling
from grpo.schedule import learning_rate_factor
from grpo_kernels import off_policy_sequence_mask
from grpo_kernels.losses import GRPOLossOutput

CLIP_METRICS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


@dataclass(frozen=True)
class Example:
    """A prompt and the completion to imitate."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


@dataclass(frozen=True)
class StepData:
    """What one optimizer step trains on: this process's sequences, and what all processes average over."""

    sequences: list[TrainSequence]
    whole: Totals
    examples: list[Example]
    example_tokens: int
    """Completion tokens of the examples of all processes."""


@dataclass(frozen=True)
class Part:
    """Sequences of one forward pass. Without `learns` they have no gradient: it is for the metrics."""

    sequences: Sequence[TrainSequence]
    learns: bool
    is_filler: bool = False
    """It stands for nothing, in a pass that other processes need."""


class Learner:
    """Updates the adapters. `beta` is the present weight of the KL, `micro_batch_size` what fits into memory."""

    def __init__(self, config: TrainConfig, policy: Policy, say: Callable[[str], None] = lambda _: None) -> None:
        self.config = config
        self.policy = policy
        self.say = say
        self.loss_config = config.loss_config()
        self.loss_path, _ = choose_loss_path("logits" if config.restricts_sampling else config.loss_path, policy)
        self.micro_batch_size = config.per_device_train_batch_size
        self.optimizer = make_optimizer(config, policy.parameters())

    @property
    def beta(self) -> float:
        return self.loss_config.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self.loss_config = replace(self.loss_config, beta=value)

    def step(self, number: int, data: StepData, moved: bool, again: bool) -> tuple[StepData, dict[str, float]]:
        """Optimizer step `number` (from 0). Returns the data, old log-probabilities included, and the metrics.

        Args:
            moved: the policy was updated since it sampled; until then the ratio is 1 by definition.
            again: these sequences were trained on before: those without a gradient need no second look.
        """
        rate = self.set_learning_rate(number)
        while True:
            try:
                known, metrics = self.accumulate(data, moved, again)
                break
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not self.can_shrink(error):
                    raise
            self.shrink()
        metrics["grad_norm"] = self.update(number)
        metrics["learning_rate"] = rate
        metrics["beta"] = self.beta
        return replace(data, sequences=known), metrics

    def accumulate(self, data: StepData, moved: bool, again: bool) -> tuple[list[TrainSequence], dict[str, float]]:
        """Add the gradients of all micro-batches to the adapters'."""
        means, extremes = TokenMeans(), Extremes()
        old_logps: dict[int, torch.Tensor] = {}
        for part in self.parts(data.sequences, again):
            batch = self.collate(part.sequences)
            if not moved:
                batch = dataclasses.replace(batch, old_logps=None)
            output = self.part_loss(part, batch, data.whole)
            if part.is_filler:
                continue
            tokens = int(batch.completion_mask.sum())
            for name in CLIP_METRICS if again else (*CLIP_METRICS, "kl", "entropy"):
                if name in output.metrics:
                    means.add(name, output.metrics[name], tokens)
            if not again:
                for name, value in self.other_kls(batch, output.logps).items():
                    means.add(name, value, tokens)
            extremes.add("ratio", output.ratio, batch.completion_mask)
            for sequence, row in zip(part.sequences, batch.rows(output.logps), strict=True):
                old_logps[id(sequence)] = row
            if not moved:
                self.compare_with_sampler(part.sequences, batch, output.logps, means, extremes)
        for examples in micro_batches(data.examples, self.micro_batch_size):
            means.add("reference_nll", self.imitate(examples, data.example_tokens), _tokens(examples))
        sequences = [
            s if s.old_logps is not None or id(s) not in old_logps else replace(s, old_logps=old_logps[id(s)])
            for s in data.sequences
        ]
        return sequences, means.read() | extremes.read()

    def other_kls(self, batch: Batch, logps: torch.Tensor) -> dict[str, torch.Tensor]:
        """The KL to the reference by the estimators that the loss does not use, a mean over the tokens (nats)."""
        if batch.ref_logps is None:
            return {}
        d = (batch.ref_logps - logps.detach()).masked_fill(~batch.completion_mask.bool(), 0.0).double()
        estimates = {"k1": -d, "k3": torch.expm1(d) - d}
        return {
            f"kl_{name}": estimate.sum() / batch.completion_mask.sum()
            for name, estimate in estimates.items()
            if name != self.config.kl_estimator
        }

    def parts(self, sequences: Sequence[TrainSequence], again: bool) -> list[Part]:
        """The sequences that have a gradient in micro-batches of their own: the others cost no backward."""
        always = self.loss_config.beta != 0 or self.loss_config.entropy_coef != 0
        seen = [s for s in sequences if not s.is_masked]
        learning = [s for s in seen if always or s.advantage != 0]
        idle = [] if again else [s for s in seen if not always and s.advantage == 0]
        parts = []
        for kind, learns in ((learning, True), (idle, False)):
            batches = list(micro_batches(kind, self.micro_batch_size))
            parts += [Part(batch, learns) for batch in batches]
            parts += [Part([self.nothing()], learns, is_filler=True)] * self.missing(len(batches))
        return parts

    def missing(self, passes: int) -> int:
        """Passes that others take and this process does not. One over a sharded model is a pass of all processes."""
        return processes.largest(passes) - passes if self.policy.is_sharded else 0

    def nothing(self) -> TrainSequence:
        """A sequence without a gradient, for a pass that other processes need."""
        pad = self.policy.pad_id
        zero = torch.zeros(1)
        return TrainSequence((pad, pad), (pad,), 0.0, old_logps=zero, ref_logps=zero, token_weights=zero)

    def part_loss(self, part: Part, batch: Batch, whole: Totals) -> GRPOLossOutput:
        """The loss of one micro-batch, its gradient added to the adapters'."""
        size = Totals.of(part.sequences)
        num_items, share = window_share(self.config.loss_type, size, whole)
        if part.is_filler:
            share = 0.0
        config = self.loss_config
        if config.entropy_coef and share:
            # The bonus is a mean over the tokens of the part: of the whole, it has this share.
            config = replace(config, entropy_coef=config.entropy_coef * size.tokens / whole.tokens / share)
        if self.config.off_policy_mask_threshold is not None and batch.old_logps is not None:
            batch = dataclasses.replace(batch, token_weights=self.off_policy_weights(batch))
        # Activations that are computed again in the backward pass need the same mode and dropout.
        with torch.set_grad_enabled(part.learns), self.policy.learning():
            with self.autocast():
                output = batch_loss(self.policy, batch, self.loss_path, num_items_in_batch=num_items, config=config)
            if part.learns:
                # Sharded gradients are means over the processes where the others are sums.
                factor = share * (processes.count() if self.policy.is_sharded else 1)
                (output.loss * factor).backward()
        return output

    def off_policy_weights(self, batch: Batch) -> torch.Tensor:
        """The token weights, 0 for sequences of negative advantage that the policy has moved away from."""
        threshold = self.config.off_policy_mask_threshold
        assert threshold is not None and batch.old_logps is not None
        with torch.no_grad(), self.autocast():
            logps, _ = batch_logps(self.policy, batch, self.loss_path, self.config.temperature)
        mask = off_policy_sequence_mask(logps, batch.old_logps, batch.advantages, batch.completion_mask, threshold)
        weights = torch.ones_like(logps) if batch.token_weights is None else batch.token_weights
        return weights * mask

    def imitate(self, examples: Sequence[Example], tokens: int) -> float:
        """Add the gradient of `reference_weight` times the mean negative log-probability; returns that of this part."""
        batch = self.collate([TrainSequence(e.prompt_ids, e.completion_ids, 0.0) for e in examples])
        with self.policy.learning():
            with self.autocast():
                logps, _ = batch_logps(self.policy, batch, self.loss_path, 1.0)
                total = -(logps * batch.completion_mask).sum()
            (total * (self.config.reference_weight / tokens)).backward()
        return total.item() / _tokens(examples)

    def compare_with_sampler(
        self,
        sequences: Sequence[TrainSequence],
        batch: Batch,
        logps: torch.Tensor,
        means: TokenMeans,
        extremes: Extremes,
    ) -> None:
        """What the sampler said of its tokens beside what the trainer says of them."""
        if any(s.sampler_logps is None for s in sequences):
            return
        rows = [torch.tensor(s.sampler_logps) for s in sequences]
        sampler = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(logps.device)
        mask = batch.completion_mask
        for name, value in mismatch_metrics(sampler, logps.detach(), mask).items():
            if name.endswith(("_max", "/max")):
                extremes.add_value(name, value, largest=True)
            elif name.endswith(("_min", "/min")):
                extremes.add_value(name, value, largest=False)
            else:
                means.add(name, value, int(mask.sum()))

    def know(
        self,
        sequences: Sequence[TrainSequence],
        old: bool = False,
        reference: bool = False,
        sampling: Sampling | None = None,
    ) -> tuple[list[TrainSequence], list[torch.Tensor]]:
        """The sequences with their log-probabilities under the policy (`old`) and under the reference.

        With `sampling` the support of the sampler is found first, and the log-probabilities are those on it. Returns
        the entropies [T] of the sequences too, where `old` is asked for.
        """
        result: list[TrainSequence] = []
        entropies: list[torch.Tensor] = []
        batches = list(micro_batches(sequences, self.micro_batch_size))
        for part in [*batches, *[[self.nothing()]] * self.missing(len(batches))]:
            batch = self.collate(part)
            known: dict[str, list[torch.Tensor]] = {}
            with torch.no_grad(), self.autocast():
                if sampling is not None:
                    packed = sampler_support(self.policy, batch, sampling)
                    batch = dataclasses.replace(batch, support=packed)
                    known["support"] = batch.rows(packed)
                if old:
                    logps, entropy = batch_logps(self.policy, batch, self.loss_path, self.config.temperature)
                    known["old_logps"] = batch.rows(logps)
                    entropies += batch.rows(entropy)
                if reference:
                    with self.policy.as_reference():
                        logps, _ = batch_logps(self.policy, batch, self.loss_path, self.config.temperature)
                    known["ref_logps"] = batch.rows(logps)
            for n, sequence in enumerate(part):
                found: dict[str, Any] = {name: rows[n] for name, rows in known.items()}
                result.append(replace(sequence, **found))
        return result[: len(sequences)], entropies[: len(sequences)]

    def update(self, number: int) -> float:
        """Clip the gradient of all processes, update, and forget it; returns its norm before clipping."""
        parameters = self.policy.parameters()
        if not processes.largest(int(any(p.grad is not None for p in parameters))):
            return 0.0
        processes.sum_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if not math.isfinite(value):
            raise FloatingPointError(f"the gradient of step {number + 1} has norm {value}: lower --learning-rate")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value

    def set_learning_rate(self, number: int) -> float:
        config = self.config
        factor = learning_rate_factor(
            config.lr_scheduler_type, number, config.warmup_steps, config.max_steps, config.min_lr_rate
        )
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * factor
        return config.learning_rate * factor

    def can_shrink(self, error: Exception) -> bool:
        """Whether the error says that memory ran out, and smaller micro-batches may be tried by this process alone."""
        out_of_memory = isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
        return out_of_memory and self.micro_batch_size > 1 and not self.policy.is_sharded

    def shrink(self) -> None:
        """Halve the micro-batches, and forget the part of the gradient that was there."""
        self.optimizer.zero_grad(set_to_none=True)
        self.micro_batch_size = (self.micro_batch_size + 1) // 2
        gc.collect()
        if self.policy.device.type == "cuda":
            torch.cuda.empty_cache()
        self.say(
            f"warning: out of memory: trying the step again with micro-batches of {self.micro_batch_size}; "
            f"--per-device-train-batch-size {self.micro_batch_size} avoids this"
        )

    def collate(self, sequences: Sequence[TrainSequence]) -> Batch:
        return collate(sequences, self.policy.pad_id, self.policy.device)

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        enabled = self.config.mixed_precision == "bf16"
        with torch.autocast(self.policy.device.type, torch.bfloat16, enabled=enabled):
            yield


def _tokens(examples: Sequence[Example]) -> int:
    return sum(len(example.completion_ids) for example in examples)
