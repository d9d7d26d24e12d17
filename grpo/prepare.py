"""From judged groups to a window: advantages, and the passes that have to come before the first optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grpo import processes
from grpo.advantages import AdvantageConfig
from grpo.batch import TrainSequence
from grpo.config import TrainConfig
from grpo.groups import Group
from grpo.learner import Example, Learner
from grpo.mismatch import importance_weights
from grpo.reference_solutions import reference_solutions
from grpo.sampler import Sampling
from grpo.window import Window, split_steps, training_sequences
from grpo_kernels import top_entropy_mask

KL_RULE = "kl@1"


@dataclass(frozen=True)
class Prepared:
    window: Window
    metrics: dict[str, float]


class Preparation:
    """Prepares windows for `learner`."""

    def __init__(self, config: TrainConfig, learner: Learner, advantages: AdvantageConfig) -> None:
        self.config = config
        self.learner = learner
        self.advantages = advantages

    def prepare(self, groups: list[Group], weights: Sequence[float], kl_weight: float) -> Prepared:
        """What the next optimizer steps train on; `weights` has a number for each rule of the groups."""
        config = self.config
        metrics: dict[str, float] = {}
        examples = self.examples(groups)
        if config.kl_in_reward:
            groups, metrics = self.with_kl_penalty(groups)
            weights = (*weights, kl_weight)
        sequences = training_sequences(
            groups,
            weights,
            self.advantages,
            config.mask_truncated_completions,
            config.temperatures is not None,
        )
        steps = split_steps(sequences, examples, config.passes_per_generation)
        steps = [
            replace(data, sequences=self.known(data.sequences, first=place == 0)) for place, data in enumerate(steps)
        ]
        return Prepared(Window(steps, config.num_iterations), metrics)

    def known(self, sequences: list[TrainSequence], first: bool) -> list[TrainSequence]:
        """The sequences of one optimizer step after the passes that the options ask for.

        The first step after sampling finds its old log-probabilities in its own forward pass, unless something else
        needs them earlier.
        """
        config = self.config
        corrects = config.importance_sampling_correction != "none"
        sampling = None
        if config.restricts_sampling:
            sampling = Sampling(config.temperature, config.top_p, config.top_k, config.min_p)
        old = corrects or config.top_entropy_quantile < 1 or sampling is not None or not first
        reference = self.learner.beta != 0 or config.report_kl
        if not old and not reference:
            return sequences
        sequences, entropies = self.learner.know(sequences, old, reference, sampling)
        if corrects:
            sequences = [self.corrected(sequence) for sequence in sequences]
        if config.top_entropy_quantile < 1:
            sequences = with_top_entropy(sequences, entropies, config.top_entropy_quantile)
        return sequences

    def corrected(self, sequence: TrainSequence) -> TrainSequence:
        """The sequence weighted by the trainer's over the sampler's probability."""
        config = self.config
        if sequence.sampler_logps is None or sequence.old_logps is None:
            return sequence
        mask = torch.ones(1, len(sequence.completion_ids))
        weights = importance_weights(
            torch.tensor(sequence.sampler_logps)[None],
            sequence.old_logps[None],
            mask,
            config.importance_sampling_correction,
            config.importance_sampling_cap,
        )
        return weighted(sequence, weights[0])

    def with_kl_penalty(self, groups: list[Group]) -> tuple[list[Group], dict[str, float]]:
        """The groups with minus each completion's KL to the reference, summed over its tokens, as one more reward."""
        completions = [c for group in groups for c in group.completions]
        temperatures = [c.temperature if self.config.temperatures else None for c in completions]
        sequences = [
            TrainSequence(c.task.prompt_ids, c.ids, 0.0, temperature)
            for c, temperature in zip(completions, temperatures, strict=True)
        ]
        known, _ = self.learner.know(processes.share(sequences), old=True, reference=True)
        penalties = processes.gather([kl_penalty(s, self.config.kl_estimator) for s in known])
        tokens = sum(len(c.ids) for c in completions)
        metrics = {"kl_penalty": -sum(penalties) / max(tokens, 1)}
        rows = iter(penalties)
        return [group.with_rule(KL_RULE, [next(rows) for _ in group.completions]) for group in groups], metrics

    def examples(self, groups: Sequence[Group]) -> list[Example]:
        """Reference solutions of the questions that no completion solved, to the length limit."""
        column = self.config.reference_column
        if column is None:
            return []
        return [
            Example(solution.prompt_ids, self.solution_ids(solution.text))
            for solution in reference_solutions(groups, column)
        ]

    def solution_ids(self, text: str) -> tuple[int, ...]:
        tokenizer = self.learner.policy.tokenizer
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"]]
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        return tuple([*ids, *end][: self.config.max_completion_length])


def weighted(sequence: TrainSequence, weights: torch.Tensor) -> TrainSequence:
    """The sequence with its token weights multiplied by `weights`, [T] or [1]."""
    weights = weights.float().expand(len(sequence.completion_ids))
    old = sequence.token_weights
    return replace(sequence, token_weights=weights.clone() if old is None else old * weights)


def with_top_entropy(
    sequences: Sequence[TrainSequence], entropies: Sequence[torch.Tensor], quantile: float
) -> list[TrainSequence]:
    """Weights of 1 for the tokens of highest entropy of all processes, and of 0 for the others."""
    everyone = processes.gather([row.tolist() for row in entropies])
    values = torch.tensor([value for row in everyone for value in row])
    kept = values[top_entropy_mask(values[None], torch.ones(1, len(values)), quantile)[0].bool()]
    threshold = kept.min() if len(kept) else torch.tensor(0.0)
    return [weighted(s, e >= threshold) for s, e in zip(sequences, entropies, strict=True)]


def kl_penalty(sequence: TrainSequence, estimator: str) -> float:
    """Minus the KL estimate of the policy to the reference, summed over the tokens."""
    assert sequence.ref_logps is not None and sequence.old_logps is not None
    d = (sequence.ref_logps - sequence.old_logps).double()
    kl = {"k1": -d, "k2": d * d / 2, "k3": torch.expm1(d) - d}[estimator]
    return -kl.sum().item()
