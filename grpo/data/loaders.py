"""Problems: rows with a `prompt` and any other columns, and which of them are held out."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.data.sources import read_rows
from grpo.errors import InputError
from grpo.groups import Prompt


@dataclass(frozen=True)
class Problem:
    """One row of data. `where` tells a person where it stands, such as "train.jsonl line 7"; it is unique."""

    where: str
    prompt: Prompt
    columns: dict[str, Any]


def read_problems(source: str | Path) -> list[Problem]:
    """The rows of `source`, see `read_rows`, which have a `prompt`. Raises InputError naming the row at fault."""
    return [problem_from_row(row, where) for where, row in read_rows(str(source))]


def problems_from_rows(rows: Sequence[Mapping[str, Any]], name: str) -> list[Problem]:
    """Problems from rows that are in memory; `name` stands for the file."""
    return [problem_from_row(row, f"{name} row {n}") for n, row in enumerate(rows, 1)]


def require_columns(problems: Sequence[Problem], columns: Sequence[str], reader: str) -> None:
    """Raise InputError where a row lacks a column that `reader`, such as "reward numeric", needs."""
    for problem in problems:
        for column in columns:
            if column not in problem.columns:
                found = ", ".join(["prompt", *problem.columns])
                raise InputError(f"{problem.where} has no column {column!r}, which {reader} needs; it has: {found}")


def hold_out(problems: Sequence[Problem], size: int | None, seed: int) -> tuple[list[Problem], list[Problem]]:
    """(train, held out). `size` None holds out a tenth, at most 500. Rows with one prompt stay on one side.

    The held-out side has `size` rows, or more where the last prompt that it takes has several.
    """
    by_prompt: dict[str, list[Problem]] = {}
    for problem in problems:
        by_prompt.setdefault(prompt_key(problem.prompt), []).append(problem)
    wanted = size if size is not None else max(1, min(500, len(problems) // 10))
    keys = list(by_prompt)
    random.Random(seed).shuffle(keys)
    held: list[Problem] = []
    while keys and len(held) < wanted:
        held += by_prompt[keys.pop()]
    if not keys:
        raise InputError(
            f"{len(problems)} rows with {len(by_prompt)} different prompts cannot give {wanted} held-out "
            "problems and leave some to train on: add rows, lower --eval-size, or give --eval-data"
        )
    return [problem for key in keys for problem in by_prompt[key]], held


def prompt_key(prompt: Prompt) -> str:
    """Equal for equal prompts."""
    return json.dumps(prompt, sort_keys=True)


def problem_from_row(row: Mapping[str, Any], where: str) -> Problem:
    """The problem of a row that has a `prompt`; raises InputError for one that cannot be used."""
    from grpo.rewards import RESERVED_COLUMNS

    if "prompt" not in row:
        raise InputError(f"{where} has no column 'prompt'; it has: {', '.join(map(str, row)) or 'nothing'}")
    prompt = row["prompt"]
    if not isinstance(prompt, str) and not _is_messages(prompt):
        raise InputError(
            f'{where}: prompt must be text, or a list of {{"role": ..., "content": ...}} with text in both'
        )
    if not prompt:
        raise InputError(f"{where}: prompt is empty")
    if any("\ud800" <= c <= "\udfff" for text in _texts(prompt) for c in text):
        raise InputError(
            f"{where}: prompt has half of a surrogate pair, which is no character: mend the escape \\ud8.."
        )
    if not isinstance(prompt, str):  # in tables, a key that a message lacks is there with no value
        prompt = [{key: value for key, value in message.items() if value is not None} for message in prompt]
    for column in RESERVED_COLUMNS:
        if column in row:
            raise InputError(
                f"{where} has a column {column!r}, a name that rewards use for what was sampled: rename it"
            )
    return Problem(where, prompt, {name: value for name, value in row.items() if name != "prompt"})


def _texts(prompt: Prompt) -> list[str]:
    return [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]


def _is_messages(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
    )
