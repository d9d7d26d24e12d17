"""A whole evaluation: data, model, greedy and sampled answers of base and adapter, a table and every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.table import Table

from grpo.config import TrainConfig
from grpo.console import Display, printable
from grpo.data.load import load_data
from grpo.data.loaders import require_columns
from grpo.data.prompts import build_tasks
from grpo.errors import InputError
from grpo.evaluate import Comparison, Evaluation, Sampled, compare_greedy, compare_means, evaluate, evaluate_samples
from grpo.groups import Task
from grpo.intervals import Estimate
from grpo.merging import merged_if
from grpo.policy import Policy, load_policy, load_tokenizer, max_length, model_path
from grpo.rewards import Reward, find_rewards
from grpo.run import load_problems


def evaluate_config(
    config: TrainConfig, samples: int, ks: Sequence[int], limit: int | None, held_out: bool, display: Display
) -> dict[str, Any]:
    """Evaluate the model of `config`, and its adapter if it names one; prints a table, returns every figure.

    `held_out`: ask the run's held-out problems; else all of its data.
    """
    rewards = find_rewards(config.reward)
    path = model_path(config)
    model_config, tokenizer = load_tokenizer(path)
    if held_out or config.model is None:
        problems = load_problems(config, tokenizer).held_out
    else:
        data = load_data(config, tokenizer)
        problems = data.train if config.eval_data is None and config.eval_size is None else data.held_out
        if config.eval_data is None and config.eval_size is None:
            problems = [*data.train, *data.held_out]
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: must be at least 1")
    problems = problems[:limit]
    for reward in rewards:
        require_columns(problems, reward.columns, f"reward {reward.name}")
    rules = tuple(reward.rule for reward in rewards)
    tasks = build_tasks(problems, tokenizer, rules, config.max_completion_length, max_length(model_config))
    policy = load_policy(path, config, tokenizer)

    with policy.as_base():
        base = Answers.of(policy, tasks, rewards, config, samples)
    adapter = None
    if config.adapter is not None:
        with merged_if(policy, config.merge_lora):
            adapter = Answers.of(policy, tasks, rewards, config, samples)
    display.say(f"{len(tasks)} questions, 95% intervals")
    comparisons = compared(base, adapter, ks)
    display.console.print(table(comparisons, adapter is not None))
    return {
        "questions": len(tasks),
        "samples": samples,
        "measures": {c.name: c.to_dict() if adapter else {"base": c.base._asdict()} for c in comparisons},
        "answers": [
            {"question": task.id, "base": base.row(n), **({"adapter": adapter.row(n)} if adapter else {})}
            for n, task in enumerate(tasks)
        ],
    }


class Answers:
    """Greedy and sampled answers of one model."""

    def __init__(self, greedy: Evaluation, sampled: Sampled | None) -> None:
        self.greedy = greedy
        self.sampled = sampled

    @classmethod
    def of(
        cls, policy: Policy, tasks: Sequence[Task], rewards: Sequence[Reward], config: TrainConfig, samples: int
    ) -> Answers:
        length, batch = config.max_completion_length, config.rollout_batch_size
        torch.manual_seed(config.seed)
        greedy = evaluate(policy, tasks, rewards, length, batch)
        if not samples:
            return cls(greedy, None)
        return cls(greedy, evaluate_samples(policy, tasks, rewards, length, batch, samples, config.temperature))

    def row(self, n: int) -> dict[str, Any]:
        row: dict[str, Any] = {"greedy": self.greedy.completions[n].text, "correct": self.greedy.correct[n]}
        if self.sampled is not None:
            row["samples_correct"] = sum(self.sampled.correct[n])
        return row


def compared(base: Answers, adapter: Answers | None, ks: Sequence[int]) -> list[Comparison]:
    """Every measure of both; without an adapter the base stands for it, too."""
    other = adapter or base
    found = [compare_greedy(base.greedy, other.greedy)]
    if base.sampled is None or other.sampled is None:
        return found
    for k in ks:
        found.append(compare_means(f"pass@{k}", base.sampled.pass_at(k), other.sampled.pass_at(k)))
    for k in ks:
        if k > 1:
            found.append(compare_means(f"maj@{k}", base.sampled.maj_at(k), other.sampled.maj_at(k)))
    return found


def table(comparisons: Sequence[Comparison], both: bool) -> Table:
    shown = Table("", "base", *(["adapter", "difference", "p"] if both else []), box=None, pad_edge=False)
    for c in comparisons:
        cells = [c.name, percent(c.base)]
        if both:
            cells += [percent(c.adapter), percent(c.difference, signed=True), "" if c.p is None else f"{c.p:.2g}"]
        shown.add_row(*map(printable, cells))
    return shown


def percent(estimate: Estimate, signed: bool = False) -> str:
    sign = "+" if signed else ""
    value, low, high = (100 * number for number in estimate)
    return f"{value:{sign}.1f}% ({low:{sign}.0f} to {high:{sign}.0f})"
