"""Which curves belong together. Every metric has a place: what no panel names is in the last section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One plot. `curves` are (label, pattern of metric names); a label may quote groups of its pattern, as `\\1`."""

    title: str
    curves: tuple[tuple[str, str], ...]
    note: str = ""
    is_share: bool = False
    """Between 0 and 1, shown as percentages."""
    against: str = "step"
    """The metric on the horizontal axis. Against another than the step, curves are drawn once more."""

    def choose(self, metrics: Sequence[str]) -> list[tuple[str, str]]:
        """(metric, label) of those that belong here, in the order of `curves`; the first pattern that fits counts."""
        found: dict[str, str] = {}
        for label, pattern in self.curves:
            for metric in metrics:
                if metric not in found and (match := re.fullmatch(pattern, metric)):
                    found[metric] = match.expand(label)
        return list(found.items())


@dataclass(frozen=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


SECTIONS = (
    Section("Accuracy and reward", (
        Panel("Held-out accuracy", (("greedy", "eval_accuracy"), (r"pass@\1", r"eval_pass_at_(\d+)")),
              "Questions that are never trained on; the shade is the 95% interval.", is_share=True),
        Panel("Reward", (("reward", "reward"),), "Mean over the completions of a step, weighted sum of all rewards."),
        Panel("Accuracy in training", (("accuracy", "accuracy"),), "Share of sampled completions that are right.",
              is_share=True),
    )),
    Section("What the reward is made of", (
        Panel("Rewards", ((r"\1", "rewards/([^/]+)/mean"),), "Mean of each reward."),
        Panel("Parts of rewards", ((r"\1", "rewards/(.+)/mean"),), "Mean of each part."),
        Panel("Spread of rewards", ((r"\1", "rewards/(.+)/std"),), "Standard deviation over all completions."),
        Panel("Completions without a verdict, or of the wrong form",
              (("no verdict", "frac_no_verdict"), ("wrong form", "frac_invalid_format")), is_share=True),
        Panel("Rewards that failed", ((r"\1", "reward_failures/(.+)"),), "Completions on which a reward raised."),
    )),
    Section("Groups", (
        Panel("Groups without a signal",
              (("all equal", "frac_reward_zero_std"), ("all right", "frac_all_right"), ("all wrong", "frac_all_wrong")),
              "Groups in which all completions get the same reward teach nothing.", is_share=True),
        Panel("Reward within a group",
              (("standard deviation", "reward_std"), ("variance", "reward_group_variance")), "Mean over the groups."),
        Panel("Different answers in a group", (("answers", "distinct_answers"),)),
        Panel("Groups that were sampled in vain",
              (("without a signal", "sampling/dead_groups"), ("discarded", "sampling/discarded_groups"))),
        Panel("Rounds of sampling for a step", (("rounds", "sampling/rounds"),)),
        Panel("Discarded completions", (("completions", "sampling/discarded_completions"),)),
        Panel("Discarded tokens", (("tokens", "sampling/discarded_tokens"),)),
    )),
    Section("Length", (
        Panel("Completion length in tokens",
              (("mean", "completions/mean_length"), ("shortest", "completions/min_length"),
               ("longest", "completions/max_length"), ("mean of the ended", "completions/mean_terminated_length"))),
        Panel("Cut off at the limit", (("cut off", "completions/clipped_ratio"),), is_share=True),
        Panel("Held-out length in tokens", (("mean", "eval_mean_length"),)),
        Panel("Accuracy by length",
              (("shortest quarter", "accuracy/length_q1"), ("second", "accuracy/length_q2"),
               ("third", "accuracy/length_q3"), ("longest quarter", "accuracy/length_q4")),
              "Completions of a step in four quarters by their length.", is_share=True),
        Panel("Held-out accuracy against length", (("evaluations", "eval_accuracy"),),
              "Each point is an evaluation, at the mean length of its answers in tokens.", is_share=True,
              against="eval_mean_length"),
        Panel("Accuracy against length in training", (("steps", "accuracy"),),
              "Each point is a step, at the mean length of its completions in tokens.", is_share=True,
              against="completions/mean_length"),
        Panel("Repetition", (("repeated 4-grams", "repetition/ngram"), ("compressible", "repetition/compression")),
              "0: nothing repeats; 1: nothing else does.", is_share=True),
    )),
    Section("Policy", (
        Panel("KL to the reference in nats a token",
              (("kl", "kl"), (r"\1", "kl_(k1|k3)"), ("taken from the reward", "kl_penalty")),
              "k1 is the mean log-ratio; k3 estimates the same with less noise and is never negative."),
        Panel("Weight of the KL", (("beta", "beta"),)),
        Panel("Entropy in nats a token", (("entropy", "entropy"),)),
        Panel("Ratio to the policy that sampled", (("smallest", "ratio/min"), ("largest", "ratio/max")),
              "New over old probability of a token, the extremes of a step."),
        Panel("Clipped tokens",
              (("all", "clip_ratio/region_mean"), ("low", "clip_ratio/low_mean"), ("high", "clip_ratio/high_mean"),
               ("low, least sequence", "clip_ratio/low_min"), ("high, most sequence", "clip_ratio/high_max"),
               ("above", "cispo_clip_ratio")), is_share=True),
        Panel("Trainer against sampler: ratio",
              (("smallest", "mismatch/ratio/min"), ("largest", "mismatch/ratio/max")),
              "The same tokens' probability, computed by the trainer and by the sampler."),
        Panel("Trainer against sampler: log-probabilities",
              (("mean difference", "mismatch/logp_difference_mean"),
               ("largest difference", "mismatch/logp_difference/max"))),
        Panel("Trainer against sampler: KL in nats a token", (("KL", "mismatch/kl"),)),
    )),
    Section("Optimisation", (
        Panel("Loss", (("loss", "loss"), ("without the entropy bonus", "policy_loss")),
              "Its level says little in GRPO: advantages have a mean of 0."),
        Panel("Loss of imitation in nats a token", (("solutions", "reference_nll"),)),
        Panel("Norm of the gradient", (("norm", "grad_norm"),), "Before clipping."),
        Panel("Learning rate", (("learning rate", "learning_rate"),)),
    )),
    Section("Speed and memory", (
        Panel("Seconds a step", (("whole step", "time/step"), (r"\1", "time/(.+)"))),
        Panel("Tokens a second", (("tokens", "tokens_per_second"),)),
        Panel("Peak of GPU memory in GiB", (("peak", "memory/peak_gb"),)),
    )),
)  # fmt: skip


def arrange(metrics: Iterable[str]) -> Iterator[tuple[Section, list[tuple[Panel, list[tuple[str, str]]]]]]:
    """The sections with the panels that these metrics fill, each panel with its (metric, label)."""
    names = [name for name in metrics if name != "step"]
    left = [name for name in names if not (name.endswith(("_low", "_high")) and name.rpartition("_")[0] in names)]
    for section in SECTIONS:
        panels = []
        for panel in section.panels:
            over_steps = panel.against == "step"
            candidates = left if over_steps else names if panel.against in names else []
            found = panel.choose(candidates)
            if over_steps:
                left = [name for name in left if name not in dict(found)]
            if found:
                panels.append((panel, found))
        if panels:
            yield section, panels
    if left:
        yield Section("Other metrics", ()), [(Panel(name, ()), [(name, name)]) for name in left]
