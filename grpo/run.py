"""One whole run: check everything, build a trainer, train."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo import processes
from grpo.callbacks import Callback
from grpo.checkpoint import find_checkpoint
from grpo.config import TrainConfig, default_output_dir
from grpo.console import Display, printable
from grpo.data.load import Data, load_data, make_data
from grpo.data.loaders import problems_from_rows, require_columns
from grpo.data.prompts import build_tasks, prompt_text
from grpo.data.sources import FORMS
from grpo.engines import Engine
from grpo.errors import InputError
from grpo.evaluate import Evaluation
from grpo.groups import Completion, Task
from grpo.output import check_output_dir
from grpo.policy import Policy, load_policy, load_tokenizer, max_length, model_path
from grpo.rewards import Reward, find_rewards, own_reward, score

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo.trainer import GRPOTrainer, Result

Rows = Sequence[Mapping[str, Any]]


def train(config: TrainConfig, display: Display | None = None) -> Result:
    """Train as `config` says; raises InputError, with nothing written, for what a user can put right."""
    started = time.perf_counter()
    trainer = build(config, display)
    try:
        result = trainer.train()
    finally:
        trainer.close()
    if result.before is not None and result.after is not None:
        show_sample(result.before, result.after, trainer.display)
    trainer.display.say(f"adapter written to {result.output_dir} after {time.perf_counter() - started:.0f} s")
    return result


def build(
    config: TrainConfig,
    display: Display | None = None,
    rewards: Sequence[Reward | Callable[..., Any]] | None = None,
    train_data: Rows | None = None,
    eval_data: Rows | None = None,
    callbacks: Sequence[Callback] = (),
    engine: Engine | None = None,
) -> GRPOTrainer:
    """A trainer that is ready to train. Nothing is written; what can be refused is, what is quick to check first.

    Args:
        rewards: functions or Reward objects, in place of those that `config.reward` names.
        train_data, eval_data: rows with a prompt and the columns that the rewards need, in place of `config.data` and
            `config.eval_data`.
        callbacks, engine: see `GRPOTrainer`.

    Raises InputError for what a user can put right.
    """
    import torch

    from grpo.trainer import GRPOTrainer

    processes.start()
    display = display or Display()
    if processes.rank() != 0:
        display = Display.silent()
    judges = find_rewards(config.reward) if rewards is None else [as_reward(reward) for reward in rewards]
    config.loss_config()
    run_dir = output_folder(config)
    path = model_path(config)
    check_data_and_model(config, train_data)
    model_config, tokenizer = load_tokenizer(path)
    data = load_problems(config, tokenizer, train_data, eval_data)
    train_problems, held_out_problems = data.train, data.held_out
    for reward in judges:
        require_columns([*train_problems, *held_out_problems], reward.columns, f"reward {reward.name}")
    rules = tuple(reward.rule for reward in judges)
    train_tasks, held_out = (
        build_tasks(problems, tokenizer, rules, config.max_completion_length, max_length(model_config))
        for problems in (train_problems, held_out_problems)
    )
    # Judging empty completions now finds the rows that a reward cannot judge, before training reaches them.
    score(judges, [Completion(task, (), "", truncated=True) for task in (*train_tasks, *held_out)])
    if torch.cuda.is_available():
        say_plan(config, train_tasks, display)
    policy = load_policy(path, config, tokenizer)
    for line in data.report:
        display.say(printable(line))
    if config.fsdp:
        processes.shard(policy.model)
    else:
        processes.same_parameters(policy.parameters())
    loss_path = resolve_loss_path(config, policy, display)
    config = dataclasses.replace(config, output_dir=str(run_dir), loss_path=loss_path)
    name = config.model or "the embedded model"
    display.say(
        f"training {name} on {len(train_tasks)} problems: {config.max_steps} steps of "
        f"{config.questions_per_step * processes.count()} questions x {config.num_generations} completions"
    )
    return GRPOTrainer(config, policy, train_tasks, judges, held_out, run_dir, engine, callbacks, display)


def say_plan(config: TrainConfig, tasks: Sequence[Task], display: Display) -> None:
    """What the run will take of the GPU's memory, and a warning where that is more than it has."""
    from grpo.memory.plan import PlanConfig, plan

    if config.restricts_sampling:
        config = dataclasses.replace(config, loss_path="logits")
    found = plan(PlanConfig.of_run(config, max(len(task.prompt_ids) for task in tasks)), search=False)
    for line in (found.summary(), *(f"warning: {warning}" for warning in found.warnings())):
        display.say(line)


def output_folder(config: TrainConfig) -> Path:
    """Where the run is written; raises InputError where it cannot be."""
    if config.resume is not None:
        return find_checkpoint(Path(config.resume)).parent
    stamp = processes.gather([time.strftime("%Y%m%d-%H%M%S")])[0]
    run_dir = Path(config.output_dir) if config.output_dir else default_output_dir(config, stamp)
    check_output_dir(run_dir, config.overwrite_output_dir)
    return run_dir


def as_reward(reward: Reward | Callable[..., Any]) -> Reward:
    """A plain function becomes a reward under its own name."""
    return reward if isinstance(reward, Reward) else own_reward(reward)


def resolve_loss_path(config: TrainConfig, policy: Policy, display: Display) -> str:
    """What `auto` means for this model; one line says why where it is not the default."""
    from grpo.loss_path import choose_loss_path

    if config.restricts_sampling and config.loss_path == "auto":
        return "logits"
    path, reason = choose_loss_path(config.loss_path, policy)
    if reason is not None:
        display.say(f"--loss-path {path}, which needs more memory: {reason}")
    return path


def check_data_and_model(config: TrainConfig, train_data: Rows | None) -> None:
    """Raise InputError where one is given without the other."""
    if config.model is None and (config.data or config.eval_data):
        raise InputError("--data needs --model, a folder or Hub id of a causal LM: the embedded model only does sums")
    if config.model is not None and config.data is None and train_data is None:
        raise InputError(f"--model needs --data, the problems to train on: {FORMS}")


def load_problems(
    config: TrainConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
    train_data: Rows | None = None,
    eval_data: Rows | None = None,
) -> Data:
    """The problems to train on and held out: of rows in memory, of what the options name, or the embedded sums."""
    if config.model is None and train_data is None:
        from grpo.data.arithmetic import addition_problems

        train_rows, held_out_rows = addition_problems("train"), addition_problems("held_out")
        return Data(problems_from_rows(train_rows, "train"), problems_from_rows(held_out_rows, "held_out"), ())
    if train_data is None:
        return load_data(config, tokenizer)
    eval_rows = None if eval_data is None else _named(eval_data, "eval_data")
    return make_data(_named(train_data, "train_data"), eval_rows, config, tokenizer)


def _named(rows: Rows, name: str) -> list[tuple[str, dict[str, Any]]]:
    return [(f"{name} row {n}", dict(row)) for n, row in enumerate(rows, 1)]


def show_sample(before: Evaluation, after: Evaluation, display: Display) -> None:
    """One held-out problem as it was answered before and after: one that training put right, if any."""
    changed = [a and not b for b, a in zip(before.correct, after.correct, strict=True)]
    n = changed.index(True) if True in changed else 0
    was, now = before.completions[n], after.completions[n]
    display.say(f"sample: {printable(prompt_text(was.task.prompt))}")
    for label, completion, correct in (("before", was, before.correct[n]), ("after", now, after.correct[n])):
        display.say(f"  {label + ':':<8} {printable(completion.text)}  ({'right' if correct else 'wrong'})")
