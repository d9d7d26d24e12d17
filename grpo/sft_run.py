"""One supervised warm start: check everything, train, write an adapter (or a model) that `grpo train` goes on from."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from grpo.batch import micro_batches
from grpo.checkpoint import flush
from grpo.config import TrainConfig, default_output_dir
from grpo.console import Display, printable
from grpo.data.load import load_data
from grpo.data.loaders import Problem, require_columns
from grpo.data.prompts import encode
from grpo.errors import InputError
from grpo.interrupt import Interrupted, listening
from grpo.output import check_output_dir, environment, remove_run
from grpo.policy import load_base, load_policy, load_tokenizer, max_length, model_path, without_dropout
from grpo.sft import SFTConfig, SFTExample, collate, sft_loss, train_supervised
from grpo.sft_config import SFTRunConfig
from grpo_kernels import UnsupportedHeadError, matches_model_logits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


OPTIONS = "sft_config.json"
# What transformers writes of a whole model and its tokenizer.
MODEL_FILES = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json", "tokenizer*",
    "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template.jinja",
)  # fmt: skip


@dataclass(frozen=True)
class SFTResult:
    """Where it is, and the mean negative log-probability of held-out completion tokens before and after."""

    output_dir: Path
    before: float
    after: float


def run_sft(config: SFTRunConfig, display: Display | None = None) -> SFTResult:
    """Train as `config` says.

    Raises InputError, with nothing written, for what a user can put right, and Interrupted after a signal, with what
    was learnt until then written.
    """
    display = display or Display()
    started = time.perf_counter()
    base_options = shared_options(config)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path(config.output_dir) if config.output_dir else default_output_dir(base_options, f"sft-{stamp}")
    check_output_dir(folder, config.overwrite_output_dir)
    path = model_path(base_options)
    model_config, tokenizer = load_tokenizer(path)
    data = load_data(config, tokenizer)
    require_columns([*data.train, *data.held_out], [config.completion_column], "--completion-column")
    limit = min(n for n in (config.max_length, max_length(model_config), 2**31) if n is not None)
    train, dropped = examples(data.train, tokenizer, config.completion_column, limit)
    held_out, also_dropped = examples(data.held_out, tokenizer, config.completion_column, limit)
    if not train or not held_out:
        raise InputError(f"no example has at most {limit} tokens: raise --max-length, or shorten the examples")

    model, pad_id = load_model(path, config, base_options, tokenizer)
    from_hidden = goes_from_hidden(model, display)
    for line in data.report:
        display.say(printable(line))
    if dropped + also_dropped:
        display.say(f"{dropped + also_dropped} examples dropped as longer than {limit} tokens")
    display.say(f"training on {len(train)} examples: {config.max_steps} steps of {step_size(config)}")
    settings = SFTConfig(
        max_steps=config.max_steps,
        batch_size=step_size(config),
        micro_batch_size=config.per_device_train_batch_size,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_steps,
        min_lr_rate=config.min_lr_rate,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        seed=config.seed,
    )
    size = config.per_device_train_batch_size
    before = held_out_loss(model, held_out, pad_id, size, from_hidden)
    rows: list[dict[str, Any]] = [{"step": 0, "eval_loss": before}]
    with display.training(config.max_steps), listening() as request:

        def on_step(step: int, loss: float) -> bool:
            row: dict[str, Any] = {"step": step, "loss": loss}
            last = step == config.max_steps or request.number is not None
            if last or (config.eval_steps and step % config.eval_steps == 0):
                row["eval_loss"] = held_out_loss(model, held_out, pad_id, size, from_hidden)
            rows.append(row)
            display.step(step, row)
            return last

        torch.manual_seed(config.seed)
        train_supervised(model, train, pad_id, settings, on_step, from_hidden)
        write(folder, model, tokenizer, config, rows)
    after = rows[-1]["eval_loss"]
    display.say(f"held-out loss {before:.4f} -> {after:.4f} nats a token")
    kind = "model" if config.full else "adapter"
    display.say(f"{kind} written to {folder} after {time.perf_counter() - started:.0f} s")
    if request.number is not None and rows[-1]["step"] < config.max_steps:
        raise Interrupted(request.number, f"interrupted after step {rows[-1]['step']} of {config.max_steps}")
    return SFTResult(folder, before, after)


def shared_options(config: SFTRunConfig) -> TrainConfig:
    """What loading a model reads, as options of `grpo train`."""
    names = ("model", "adapter", "dtype", "load_in_4bit", "attn_implementation", "gradient_checkpointing", "lora_r",
             "lora_alpha", "lora_dropout", "lora_target_modules", "seed")  # fmt: skip
    return TrainConfig(**{name: getattr(config, name) for name in names})


def load_model(
    path: str, config: SFTRunConfig, options: TrainConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[nn.Module, int]:
    """(the model with what is to be trained, the id that fills padding)."""
    if not config.full:
        policy = load_policy(path, options, tokenizer)
        return policy.model, policy.pad_id
    model = load_base(path, options).float()
    without_dropout(model)
    if config.gradient_checkpointing or (config.gradient_checkpointing is None and model.device.type == "cuda"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return model.requires_grad_(True), pad_id if pad_id is not None else 0


def examples(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, column: str, limit: int
) -> tuple[list[SFTExample], int]:
    """(prompts with their completions and an end-of-sequence token, how many were longer than `limit` tokens)."""
    made = []
    for problem in problems:
        text = completion_text(problem, column)
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
            ids.append(tokenizer.eos_token_id)
        made.append(SFTExample(encode(problem.prompt, tokenizer, problem.where), ids))
    kept = [example for example in made if len(example.prompt_ids) + len(example.completion_ids) <= limit]
    return kept, len(made) - len(kept)


def completion_text(problem: Problem, column: str) -> str:
    """The text of the column, or of the one chat message in it."""
    value = problem.columns[column]
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0].get("content")
    if not isinstance(value, str) or not value:
        raise InputError(
            f"{problem.where}: column {column!r} is {shortened(problem.columns[column])}; it must be a text that is "
            "not empty, or one chat message with such a text"
        )
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f"{problem.where}: column {column!r} has half of a surrogate pair, which is no character")
    return value


def shortened(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


def goes_from_hidden(model: nn.Module, display: Display) -> bool:
    """Whether the loss can do without the logits; one line says why where it cannot."""
    try:
        if matches_model_logits(model):
            return True
        reason = "its logits are not those of its hidden states and its head alone"
    except UnsupportedHeadError as error:
        reason = str(error)
    display.say(f"the loss goes through the model's logits, which needs more memory: {reason}")
    return False


@torch.no_grad()
def held_out_loss(model: nn.Module, held_out: Sequence[SFTExample], pad_id: int, size: int, from_hidden: bool) -> float:
    """Mean negative log-probability over the completion tokens, in nats."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    for part in micro_batches(held_out, size):
        count = sum(len(example.completion_ids) for example in part)
        total += sft_loss(model, collate(part, pad_id, device), from_hidden).item() * count
        tokens += count
    model.train(was_training)
    return total / tokens


def step_size(config: SFTRunConfig) -> int:
    return config.per_device_train_batch_size * config.gradient_accumulation_steps


def write(
    folder: Path, model: Any, tokenizer: PreTrainedTokenizerBase, config: SFTRunConfig, rows: Sequence[dict[str, Any]]
) -> None:
    """A new folder appears whole. Into one that is there, in place of an earlier run, files are moved one by one."""
    there = folder.is_dir()
    staged = folder / ".sft.new" if there else folder.with_name(f".{folder.name}.new")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    if config.full:
        model.save_pretrained(str(staged))
        tokenizer.save_pretrained(str(staged))
    else:
        model.save_pretrained(str(staged), selected_adapters=["default"], save_embedding_layers=False)
        (staged / "README.md").unlink(missing_ok=True)  # PEFT's form of a model card, not filled in
    (staged / "environment.json").write_text(json.dumps(environment(), indent=2) + "\n", encoding="utf-8")
    (staged / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (staged / OPTIONS).write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
    flush(staged)
    if not there:
        os.replace(staged, folder)
        return
    remove_earlier(folder)
    for file in sorted(staged.iterdir()):
        os.replace(file, folder / file.name)
    staged.rmdir()


def remove_earlier(folder: Path) -> None:
    """Remove the files of an earlier run, of `grpo train` or of `grpo sft`, and no others."""
    remove_run(folder)
    if (folder / OPTIONS).exists():
        for pattern in (OPTIONS, *MODEL_FILES):
            for file in folder.glob(pattern):
                file.unlink()
