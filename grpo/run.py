"""One whole run: check everything, evaluate, train, evaluate again, write."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.config import TrainConfig, default_output_dir
from grpo.console import Display, printable
from grpo.data.loaders import (
    Problem,
    hold_out,
    problems_from_rows,
    prompt_key,
    read_problems,
    require_columns,
)
from grpo.data.prompts import build_tasks, prompt_text
from grpo.evaluate import Evaluation, evaluate
from grpo.groups import Completion, Group, Task
from grpo.output import check_output_dir, write_run
from grpo.policy import Policy, load_policy, load_tokenizer, max_length, model_path
from grpo.rewards import Reward, find_rewards, score

if TYPE_CHECKING:
    from grpo.trainer import Trainer


@dataclass(frozen=True)
class Run:
    """A checked run, ready to train: nothing has been written yet."""

    config: TrainConfig
    output_dir: Path
    policy: Policy
    train_tasks: list[Task]
    held_out: list[Task]
    rewards: list[Reward]


@dataclass(frozen=True)
class Result:
    output_dir: Path
    before: Evaluation
    after: Evaluation
    metrics: list[dict[str, Any]]


def train(config: TrainConfig, display: Display | None = None) -> Result:
    """Train as `config` says; raises InputError, with nothing written, for what a user can put right."""
    display = display or Display()
    run = prepare(config, display)
    started = time.perf_counter()

    before = evaluate_run(run)
    display.say(f"held-out greedy accuracy before: {before.accuracy:.1%} of {len(before.correct)} problems")
    trainer, metrics, samples = train_steps(run, display)
    after = evaluate_run(run)
    display.say(f"held-out greedy accuracy after:  {after.accuracy:.1%} of {len(after.correct)} problems")
    show_sample(before, after, display)

    metrics = [{"step": 0, "eval_accuracy": before.accuracy}, *metrics]
    metrics[-1]["eval_accuracy"] = after.accuracy
    samples += evaluation_samples(0, before, run.rewards) + evaluation_samples(trainer.steps_done, after, run.rewards)
    write_run(run.output_dir, run.policy, run.config, metrics, samples)
    display.say(f"adapter written to {run.output_dir} after {time.perf_counter() - started:.0f} s")
    return Result(run.output_dir, before, after, metrics)


def prepare(config: TrainConfig, display: Display) -> Run:
    """Everything that can be refused is refused here, what is quick to check first."""
    rewards = find_rewards(config.reward)
    config.loss_config()
    output_dir = (
        Path(config.output_dir) if config.output_dir else default_output_dir(config, time.strftime("%Y%m%d-%H%M%S"))
    )
    check_output_dir(output_dir, config.overwrite_output_dir)
    train_problems, held_out_problems = load_problems(config)
    for reward in rewards:
        require_columns([*train_problems, *held_out_problems], reward.columns, f"reward {reward.name}")
    shared = {prompt_key(p.prompt) for p in held_out_problems} & {prompt_key(p.prompt) for p in train_problems}
    if shared:
        display.say(f"warning: {len(shared)} held-out prompts are also trained on: the accuracy counts them too")

    path = model_path(config)
    model_config, tokenizer = load_tokenizer(path)
    rules = tuple(reward.rule for reward in rewards)
    train_tasks, held_out = (
        build_tasks(problems, tokenizer, rules, config.max_completion_length, max_length(model_config))
        for problems in (train_problems, held_out_problems)
    )
    # Judging empty completions now finds the rows that a reward cannot judge, before training reaches them.
    score(rewards, [Completion(task, (), "", truncated=True) for task in (*train_tasks, *held_out)])
    policy = load_policy(path, config, tokenizer)
    loss_path = resolve_loss_path(config, policy, display)
    config = dataclasses.replace(config, output_dir=str(output_dir), loss_path=loss_path)
    name = config.model or "the embedded model"
    display.say(
        f"training {name} on {len(train_tasks)} problems: {config.max_steps} steps of "
        f"{config.questions_per_step} questions x {config.num_generations} completions"
    )
    return Run(config, output_dir, policy, train_tasks, held_out, rewards)


def resolve_loss_path(config: TrainConfig, policy: Policy, display: Display) -> str:
    """What `auto` means for this model; one line says why where it is not the default."""
    from grpo.loss_path import choose_loss_path

    path, reason = choose_loss_path(config.loss_path, policy)
    if reason is not None:
        display.say(f"--loss-path {path}, which needs more memory: {reason}")
    return path


def load_problems(config: TrainConfig) -> tuple[list[Problem], list[Problem]]:
    """(train, held out)."""
    if config.data is None:
        from grpo.data.arithmetic import addition_problems

        train_rows, held_out_rows = addition_problems("train"), addition_problems("held_out")
        return problems_from_rows(train_rows, "train"), problems_from_rows(held_out_rows, "held_out")
    problems = read_problems(Path(config.data))
    if config.eval_data is None:
        return hold_out(problems, config.eval_size, config.seed)
    return problems, read_problems(Path(config.eval_data))


def train_steps(run: Run, display: Display) -> tuple[Trainer, list[dict[str, Any]], list[dict[str, Any]]]:
    """All steps; returns the trainer, the metrics of every step and samples of every step's first group."""
    from grpo.trainer import Trainer

    trainer = Trainer(run.config, run.policy, run.train_tasks, run.rewards)
    metrics: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    with display.training(run.config.max_steps):
        for number in range(1, run.config.max_steps + 1):
            step = trainer.step()
            metrics.append(step.metrics)
            samples += group_samples(number, step.groups[0], run.rewards)
            display.step(number, step.metrics)
    return trainer, metrics, samples


def evaluate_run(run: Run) -> Evaluation:
    config = run.config
    return evaluate(run.policy, run.held_out, run.rewards, config.max_completion_length, config.rollout_batch_size)


def show_sample(before: Evaluation, after: Evaluation, display: Display) -> None:
    """One held-out problem as it was answered before and after: one that training put right, if any."""
    changed = [a and not b for b, a in zip(before.correct, after.correct, strict=True)]
    n = changed.index(True) if True in changed else 0
    was, now = before.completions[n], after.completions[n]
    display.say(f"sample: {printable(prompt_text(was.task.prompt))}")
    for label, completion, correct in (("before", was, before.correct[n]), ("after", now, after.correct[n])):
        display.say(f"  {label + ':':<8} {printable(completion.text)}  ({'right' if correct else 'wrong'})")


def group_samples(step: int, group: Group, rewards: Sequence[Reward]) -> list[dict[str, Any]]:
    rows = zip(group.completions, group.rewards, strict=True)
    return [_sample(step, "train", completion, row, rewards) for completion, row in rows]


def evaluation_samples(step: int, evaluation: Evaluation, rewards: Sequence[Reward]) -> list[dict[str, Any]]:
    rows = zip(evaluation.completions, evaluation.rewards, strict=True)
    return [_sample(step, "held_out", completion, row, rewards) for completion, row in rows]


def _sample(
    step: int, split: str, completion: Completion, row: tuple[float | None, ...], rewards: Sequence[Reward]
) -> dict[str, Any]:
    return {
        "step": step,
        "split": split,
        "question": completion.task.id,
        "prompt": completion.task.prompt,
        "completion": completion.text,
        "truncated": completion.truncated,
        "rewards": {reward.name: value for reward, value in zip(rewards, row, strict=True)},
    }
