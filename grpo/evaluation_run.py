"""A whole evaluation: data, model, greedy and sampled answers of base and adapter, a table and every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from grpo.config import TrainConfig
from grpo.console import Display, printable
from grpo.data.load import make_data
from grpo.data.loaders import Problem, require_columns
from grpo.data.prompts import build_tasks
from grpo.data.sources import read_rows
from grpo.errors import InputError
from grpo.evaluate import Answers, Comparison, compare_greedy, compare_means, evaluate_model
from grpo.intervals import Estimate
from grpo.merging import merged_if
from grpo.policy import load_policy, load_tokenizer, max_length, model_path
from grpo.rewards import RewardRunner, find_rewards
from grpo.run import load_problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Options that the figures depend on, written with them.
RECORDED = (
    "model", "adapter", "dtype", "load_in_4bit", "data", "eval_data", "eval_size", "reward", "max_completion_length",
    "temperature", "seed",
)  # fmt: skip


def evaluate_config(
    config: TrainConfig, samples: int, ks: Sequence[int], limit: int | None, held_out: bool, display: Display
) -> dict[str, Any]:
    """Evaluate the model of `config`, and its adapter if it names one; prints a table, returns every figure.

    `held_out`: ask the run's held-out problems; else all of its data.
    """
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit}: must be at least 1")
    rewards = find_rewards(config.reward)
    runner = RewardRunner(rewards, config.on_reward_error, config.reward_timeout)
    path = model_path(config)
    model_config, tokenizer = load_tokenizer(path)
    problems = chosen_problems(config, tokenizer, held_out)[:limit]
    for reward in rewards:
        require_columns(problems, reward.columns, f"reward {reward.name}")
    rules = tuple(reward.rule for reward in rewards)
    tasks = build_tasks(problems, tokenizer, rules, config.max_completion_length, max_length(model_config))
    policy = load_policy(path, config, tokenizer)

    def answers() -> Answers:
        length, batch = config.max_completion_length, config.rollout_batch_size
        return evaluate_model(policy, tasks, runner, length, batch, samples, config.temperature, config.seed)

    with policy.as_base():
        base = answers()
    adapter = None
    if config.adapter is not None:
        with merged_if(policy, config.merge_lora):
            adapter = answers()
    display.say(f"{len(tasks)} question{'s' if len(tasks) > 1 else ''}, 95% intervals")
    comparisons = compared(base, adapter, ks)
    display.console.print(table(comparisons, adapter is not None))
    return {
        **{name: value for name, value in config.to_dict().items() if name in RECORDED},
        "questions": len(tasks),
        "samples": samples,
        "measures": {c.name: c.to_dict() if adapter else {"base": c.base._asdict()} for c in comparisons},
        "answers": [
            {
                "question": task.id,
                "base": answers_row(base, n),
                **({"adapter": answers_row(adapter, n)} if adapter else {}),
            }
            for n, task in enumerate(tasks)
        ],
    }


def chosen_problems(config: TrainConfig, tokenizer: PreTrainedTokenizerBase, held_out: bool) -> list[Problem]:
    """The held-out problems of `config`, or all of its data; where it names held-out problems, always those."""
    if held_out or config.data is None or config.eval_data is not None or config.eval_size is not None:
        return load_problems(config, tokenizer).held_out
    rows = read_rows(config.data)
    return make_data(rows, rows, config, tokenizer).held_out


def answers_row(answers: Answers, n: int) -> dict[str, Any]:
    """The answers to task `n`, as JSON."""
    row: dict[str, Any] = {"greedy": answers.greedy.completions[n].text, "correct": answers.greedy.correct[n]}
    if answers.sampled is not None:
        row["samples_correct"] = sum(answers.sampled.correct[n])
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
    columns = ["", "base", *(["adapter", "difference", "p"] if both else [])]
    shown = Table(*columns, box=None, pad_edge=False, collapse_padding=True)
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
