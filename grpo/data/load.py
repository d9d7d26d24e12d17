"""All data of a run: read, mapped, made unique, held out and measured, with a report in words."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from grpo.data.columns import as_messages, fill, parse_renames, parse_template, rename
from grpo.data.loaders import Problem, hold_out, problem_from_row, prompt_key
from grpo.data.sources import FORMS, Row, read_rows
from grpo.errors import InputError
from grpo.groups import Prompt
from grpo.options import option

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class DataConfig:
    """Where problems come from and how their columns are used."""

    data: str | None = option(None, "data", f"problems to train on: {FORMS}")
    eval_data: str | None = option(None, "data", "held-out problems, in the same form as --data")
    eval_size: int | None = option(
        None, "data", "problems to hold out of --data without --eval-data; default: a tenth, at most 500"
    )
    prompt_column: str = option("prompt", "data", "column with the prompt: text or chat messages")
    prompt_template: str | None = option(
        None, "data", "the prompt as a text with columns in braces, such as 'Question: {question}'"
    )
    system_prompt: str | None = option(
        None, "data", "system message of every prompt, in place of its own; text prompts become chat messages"
    )
    apply_chat_template: bool = option(False, "data", "put text prompts to the model as a chat message of the user")
    columns: tuple[str, ...] = option(
        (), "data", "NAME=COLUMN: the data's column that the rewards know as NAME, such as answer=solution"
    )
    max_prompt_length: int | None = option(None, "data", "drop problems whose prompt has more tokens, and count them")
    seed: int = option(0, "data", "seed of the choice of held-out problems")

    def __post_init__(self) -> None:
        for name in ("eval_size", "max_prompt_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} {value}: must be at least 1")
        if self.eval_data is not None and self.eval_size is not None:
            raise InputError("--eval-size holds problems out of --data and --eval-data replaces that: give one of them")
        if self.prompt_template is not None:
            parse_template(self.prompt_template)
            if self.prompt_column != "prompt":
                raise InputError(
                    f"--prompt-column {self.prompt_column} and --prompt-template both say what the prompt is: "
                    "give one of them"
                )
        parse_renames(self.columns)


@dataclass(frozen=True)
class Data:
    """Problems to train on and held out, and a report: lines of plain text, without anything of the data itself."""

    train: list[Problem]
    held_out: list[Problem]
    report: tuple[str, ...]


def load_data(config: DataConfig, tokenizer: PreTrainedTokenizerBase | None = None) -> Data:
    """Everything that `config` says. Only `max_prompt_length` needs the tokenizer.

    Raises InputError naming the row or option at fault.
    """
    if config.data is None:
        raise InputError(f"--data is missing: give {FORMS}")
    held_out = read_rows(config.eval_data) if config.eval_data is not None else None
    return make_data(read_rows(config.data), held_out, config, tokenizer)


def make_data(
    train_rows: Sequence[Row],
    eval_rows: Sequence[Row] | None,
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Data:
    """`load_data` of rows that have been read. Rows that are equal in all that is used of them are kept once."""
    train, line = _prepare(train_rows, "training data", config, tokenizer)
    report = [line]
    if eval_rows is None:
        train, held_out = hold_out(train, config.eval_size, config.seed)
        report.append(f"{len(held_out)} of them are held out")
    else:
        held_out, line = _prepare(eval_rows, "held-out data", config, tokenizer)
        report.append(line)
    trained = {loose_key(p.prompt) for p in train}
    both = sum(loose_key(p.prompt) in trained for p in held_out)
    report.append(f"{both} held-out prompts are also trained on, not counting case and space")
    return Data(train, held_out, tuple(report))


def mapped_problems(rows: Sequence[Row], config: DataConfig) -> list[Problem]:
    """Problems of (where, row) with prompt and columns as `config` names them."""
    renames = parse_renames(config.columns)
    pieces = parse_template(config.prompt_template) if config.prompt_template is not None else None
    problems = []
    for where, row in rows:
        if pieces is not None:
            prompt: Any = fill(pieces, row, where)
        elif config.prompt_column in row:
            prompt = row[config.prompt_column]
        else:
            found = ", ".join(map(str, row)) or "nothing"
            raise InputError(
                f"{where} has no column {config.prompt_column!r}; it has: {found}; name the prompt's column with "
                "--prompt-column, or give --prompt-template"
            )
        columns = rename(row, renames, where)
        if pieces is None and config.prompt_column not in renames:
            columns.pop(config.prompt_column, None)
        problem = problem_from_row(columns | {"prompt": prompt}, where)
        if config.apply_chat_template or config.system_prompt is not None:
            problem = Problem(where, as_messages(problem.prompt, config.system_prompt), problem.columns)
        problems.append(problem)
    return problems


def unique(problems: Sequence[Problem]) -> list[Problem]:
    """The first of all problems that are equal in prompt and columns."""
    found: dict[str, Problem] = {}
    for problem in problems:
        key = json.dumps([problem.prompt, problem.columns], sort_keys=True, default=str)
        found.setdefault(key, problem)
    return list(found.values())


def loose_key(prompt: Prompt) -> str:
    """Equal for prompts that differ in case and space alone."""
    texts = [prompt] if isinstance(prompt, str) else [f"{m['role']}: {m['content']}" for m in prompt]
    return "\n".join(" ".join(text.casefold().split()) for text in texts)


def prompt_lengths(problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of each prompt."""
    from grpo.data.prompts import encode

    return [len(encode(problem.prompt, tokenizer, problem.where)) for problem in problems]


def _prepare(
    rows: Sequence[Row], what: str, config: DataConfig, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[Problem], str]:
    """The problems of rows, and what happened to these in a line."""
    problems = unique(mapped_problems(rows, config))
    words = [f"{what}: {len(rows)} rows"]
    if len(problems) < len(rows):
        words.append(f"{len(rows) - len(problems)} of them repeat another and are dropped")
    several = sum(count > 1 for count in Counter(prompt_key(p.prompt) for p in problems).values())
    if several:
        words.append(f"prompts with several sets of columns: {several}")
    if config.max_prompt_length is not None:
        if tokenizer is None:
            raise ValueError("max_prompt_length needs the tokenizer")
        lengths = prompt_lengths(problems, tokenizer)
        kept = [p for p, n in zip(problems, lengths, strict=True) if n <= config.max_prompt_length]
        if not kept:
            raise InputError(
                f"--max-prompt-length {config.max_prompt_length} drops every prompt of the {what}: the shortest has "
                f"{min(lengths)} tokens, half have {median(lengths):g} or fewer"
            )
        words.append(f"{len(problems) - len(kept)} dropped as longer than {config.max_prompt_length} tokens")
        problems = kept
    return problems, "; ".join(words)
