"""Alarms: rules on a run's metrics that say what goes wrong, by what evidence, and what to try.

Each rule reads a `History` and returns its evidence, a sentence, or None. Thresholds are of the order of what runs that
were well show; a rule speaks once a run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo.history import History

FLAT = 0.03  # held-out accuracy that rose by less has not risen


@dataclass(frozen=True)
class Alarm:
    """`severity`: "critical" where going on is a waste, else "warning"."""

    step: int
    name: str
    severity: str
    message: str
    advice: str


@dataclass(frozen=True)
class Rule:
    name: str
    severity: str
    evidence: Callable[[History], str | None]
    advice: str


class Diagnosis:
    """The alarms of a run as its metrics come; each is raised once. `raised` names those that were raised before."""

    def __init__(self, raised: Iterable[str] = ()) -> None:
        self.history = History()
        self.raised = set(raised)

    def add(self, row: Mapping[str, Any]) -> list[Alarm]:
        """The alarms that a row of metrics raises."""
        self.history.add(row)
        alarms = []
        for rule in RULES:
            if rule.name not in self.raised and (message := rule.evidence(self.history)):
                self.raised.add(rule.name)
                alarms.append(Alarm(row["step"], rule.name, rule.severity, message, rule.advice))
        return alarms


def diagnose(rows: Iterable[Mapping[str, Any]]) -> list[Alarm]:
    """The alarms of a run's rows of metrics."""
    diagnosis = Diagnosis()
    return [alarm for row in rows for alarm in diagnosis.add(row)]


def accuracy_rise(history: History) -> tuple[float, str] | None:
    """By how much accuracy rose, and in words: held out, if that is evaluated at all, else of the training samples.

    None where it is not known now.
    """
    first, last = history.first_evaluation, history.last_evaluation
    if first is not None and last is not None:
        if last["step"] != history.step or last is first:
            return None
        before, after = first["eval_accuracy"], last["eval_accuracy"]
        return after - before, f"held-out accuracy went from {before:.1%} to {after:.1%}"
    rise, start = history.rise("accuracy"), history.at_start("accuracy")
    if rise is None or start is None:
        return None
    return rise, f"accuracy went from {start:.1%} to {start + rise:.1%}"


def hacked(history: History) -> tuple[str, str] | None:
    """Where the reward rose and accuracy did not: the part of the reward that rose most, and the evidence."""
    accuracy, rise, start = accuracy_rise(history), history.rise("reward"), history.at_start("reward")
    if accuracy is None or accuracy[0] >= FLAT or (history.rise("accuracy") or 0.0) >= FLAT:
        return None
    if not rise or rise <= 0 or start is None:
        return None
    rises = {name.removesuffix("/mean"): history.rise(name) or 0.0 for name in history.names("rewards/", "/mean")}
    # Of a reward that is made of parts, its own mean says nothing that they do not.
    leaves = {name: rise for name, rise in rises.items() if not any(other.startswith(f"{name}/") for other in rises)}
    part = max(leaves, key=lambda name: leaves[name], default="")
    evidence = f"the reward rose from {start:.3g} to {start + rise:.3g}, but {accuracy[1]}"
    before = history.at_start(f"{part}/mean")
    if before is not None and leaves[part] > 0:
        evidence += f"; what rose is {part.removeprefix('rewards/')}: {before:.3g} to {before + leaves[part]:.3g}"
    return part, evidence


def is_of_length(part: str) -> bool:
    return any(word in part.rpartition("rewards/")[2].lower() for word in ("length", "overlong"))


def format_hacking(history: History) -> str | None:
    found = hacked(history)
    return found[1] if found and "format" in found[0].lower() else None


def length_hacking(history: History) -> str | None:
    found = hacked(history)
    if found is None or not is_of_length(found[0]):
        return None
    before, now = history.at_start("completions/mean_length"), history.now("completions/mean_length")
    return found[1] + (f"; mean length went from {before:.0f} to {now:.0f} tokens" if before and now else "")


def reward_hacking(history: History) -> str | None:
    found = hacked(history)
    return found[1] if found and "format" not in found[0].lower() and not is_of_length(found[0]) else None


def drift(history: History) -> str | None:
    values = history.recent("kl", 10)
    if len(values) < 10:
        return None
    now, earlier = statistics.median(values), history.recent("kl", 30)[:10]
    accuracy, before = accuracy_rise(history), statistics.median(earlier)
    grows = history.count("kl") >= 30 and now > 0.3 and now > 3 * before
    runs_away = grows and accuracy is not None and accuracy[0] < FLAT
    if now > 2.0 or runs_away:
        return f"the KL to the reference is {now:.2f} nats a token, {before:.2f} twenty steps before"
    return None


def no_signal(history: History) -> str | None:
    dead = history.now("frac_reward_zero_std", 20)
    if dead is None or dead <= 0.9:
        return None
    right, wrong = history.now("frac_all_right", 20) or 0.0, history.now("frac_all_wrong", 20) or 0.0
    kind = "too easy" if right > wrong else "too hard"
    return (
        f"in {dead:.0%} of the groups of the last 20 steps all rewards are equal, which gives no gradient: {right:.0%} "
        f"are all right, {wrong:.0%} all wrong; the questions are {kind}"
    )


def verbosity(history: History) -> str | None:
    before, rise = history.at_start("completions/mean_length"), history.rise("completions/mean_length")
    accuracy = accuracy_rise(history)
    if before is None or not rise or accuracy is None or accuracy[0] >= FLAT or rise < 0.5 * before:
        return None
    return f"mean completion length rose from {before:.0f} to {before + rise:.0f} tokens, but {accuracy[1]}"


def collapse(history: History) -> str | None:
    before, now, accuracy = history.at_start("entropy"), history.now("entropy"), history.now("accuracy")
    if before is None or now is None or now > 0.1 * before or (accuracy is not None and accuracy > 0.9):
        return None
    answers = history.now("distinct_answers")
    different = "" if answers is None else f", {answers:.1f} different answers a group"
    solved = "" if accuracy is None else f", while {accuracy:.0%} of the completions are right"
    return f"the entropy fell from {before:.2g} to {now:.2g} nats a token{different}{solved}"


def truncation(history: History) -> str | None:
    share = history.now("completions/clipped_ratio")
    return f"{share:.0%} of the last completions hit the length limit" if share is not None and share > 0.3 else None


def invalid_format(history: History) -> str | None:
    share = history.now("frac_invalid_format", 20)
    return f"{share:.0%} of the completions of the last 20 steps lack the form" if share and share > 0.5 else None


def repetition(history: History) -> str | None:
    share = history.now("repetition/ngram")
    if share is None or share <= 0.4:
        return None
    return f"{share:.0%} of the 4-grams of the last completions repeat earlier ones of the same completion"


def mismatch(history: History) -> str | None:
    values = history.recent("mismatch/logp_difference_mean", 5)
    if len(values) < 5 or statistics.median(values) <= 0.1:
        return None
    found = statistics.median(values)
    return f"the sampler's log-probabilities differ from the trainer's by {found:.2g} nats a token on average"


def gradient_spikes(history: History) -> str | None:
    norms = [norm for norm in history.recent("grad_norm") if norm > 0]
    if len(norms) < 20:
        return None
    median = statistics.median(norms)
    spikes = sum(norm > 10 * median for norm in norms)
    if spikes < 3:
        return None
    return (
        f"the gradient's norm was over ten times its median ({median:.2g}) in {spikes} of the last {len(norms)} steps"
    )


def verifier_errors(history: History) -> str | None:
    share = history.now("frac_no_verdict", 5)
    if share is None or share <= 0.05:
        return None
    names = [name.removeprefix("reward_failures/") for name in history.names("reward_failures/")]
    who = f"; it failed in {', '.join(names)}" if names else ""
    return f"{share:.0%} of the completions of the last 5 samplings have no verdict{who}"


def never_right(history: History) -> str | None:
    values = history.recent("accuracy", 10)
    evaluated = history.last_evaluation
    if len(values) < 10 or any(values) or (evaluated is not None and evaluated["eval_accuracy"] > 0):
        return None
    return "not one completion of the last 10 samplings is right"


def nothing_changes(history: History) -> str | None:
    norms, dead = history.recent("grad_norm", 10), history.now("frac_reward_zero_std")
    if len(norms) < 10 or any(norms) or dead is None or dead == 1:
        return None
    return f"the adapters' gradient was 0 in the last 10 steps, though {1 - dead:.0%} of the groups differ in reward"


def overfitting(history: History) -> str | None:
    evaluated, training, started = history.last_evaluation, history.now("accuracy"), history.at_start("accuracy")
    first = history.first_evaluation
    if evaluated is None or first is None or training is None or started is None or evaluated["step"] != history.step:
        return None
    gap, gap_before = training - evaluated["eval_accuracy"], started - first["eval_accuracy"]
    if gap <= 0.2 or gap - gap_before <= 0.15:
        return None
    held_out = evaluated["eval_accuracy"]
    return f"{training:.1%} of the training completions are right, but {held_out:.1%} of the held-out answers"


RULES = (
    Rule(
        "format_hacking", "critical", format_hacking,
        "give points for the form only where the answer is right (a gate in a composite reward), or lower their weight",
    ),
    Rule(
        "length_hacking", "critical", length_hacking,
        "gate the length reward on a right answer, lower its weight, or make it a penalty beyond a budget alone",
    ),
    Rule(
        "reward_hacking", "critical", reward_hacking,
        "read the samples with the highest reward; try the reward with grpo audit; gate that part on a right answer",
    ),
    Rule(
        "drift", "warning", drift,
        "lower learning_rate, set beta to 0.01-0.1, or fewer num_iterations",
    ),
    Rule(
        "no_signal", "warning", no_signal,
        "other questions: harder or easier ones, difficulty_sampling, dead_groups: resample, larger groups, or a warm "
        "start with grpo sft where all are wrong",
    ),
    Rule(
        "verbosity", "warning", verbosity,
        "loss_type dr_grpo or dapo (grpo favours long wrong answers), a length penalty beyond a budget, overlong_cache",
    ),
    Rule(
        "collapse", "warning", collapse,
        "lower learning_rate, a higher epsilon_high (0.28), a small entropy_coef, a higher temperature, some beta",
    ),
    Rule(
        "truncation", "warning", truncation,
        "raise max_completion_length, set mask_truncated_completions or overlong_cache, or ask for shorter answers",
    ),
    Rule(
        "invalid_format", "warning", invalid_format,
        "show the form in the prompt (a worked example), or warm up with grpo sft on a few answers in that form",
    ),
    Rule(
        "repetition", "warning", repetition,
        "add the repetition reward, lower learning_rate, and look whether truncated completions earn anything",
    ),
    Rule(
        "mismatch", "warning", mismatch,
        "importance_sampling_correction: token_truncate; sample in the dtype that is trained; check that the server "
        "loaded the newest adapter",
    ),
    Rule(
        "gradient_spikes", "warning", gradient_spikes,
        "lower learning_rate or max_grad_norm, set delta, or look at the samples of those steps",
    ),
    Rule(
        "verifier_errors", "warning", verifier_errors,
        "look for the reasons in the log; on_reward_error: stop ends the run at the first one",
    ),
    Rule(
        "never_right", "critical", never_right,
        "check with grpo audit that the reward accepts right answers, and with grpo data that the prompt asks for "
        "their form; if it does, the questions are too hard: warm up with grpo sft",
    ),
    Rule(
        "nothing_changes", "critical", nothing_changes,
        "check lora_target_modules, learning_rate and reward_weights: no trained weight gets a gradient",
    ),
    Rule(
        "overfitting", "warning", overfitting,
        "more or more varied questions, fewer steps, some beta, a lower lora_r",
    ),
)  # fmt: skip
ALARMS = tuple(rule.name for rule in RULES)
