"""Problems from a JSONL file: rows with a `prompt` and any other columns, and which of them are held out."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.errors import InputError
from grpo.groups import Prompt


@dataclass(frozen=True)
class Problem:
    """One row of data. `where` tells a person where it stands, such as "train.jsonl line 7"; it is unique."""

    where: str
    prompt: Prompt
    columns: dict[str, Any]


def read_problems(path: Path) -> list[Problem]:
    """The rows of a JSONL file; blank lines are skipped. Raises InputError naming the line at fault."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: give the path of a JSONL file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: give the path of a JSONL file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    problems = [_problem(line, f"{path} line {n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not problems:
        raise InputError(f"{path} is empty: it needs one JSON object a line, with a prompt")
    return problems


def problems_from_rows(rows: Sequence[Mapping[str, Any]], name: str) -> list[Problem]:
    """Problems from rows that are in memory; `name` stands for the file."""
    return [_from_row(row, f"{name} row {n}") for n, row in enumerate(rows, 1)]


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


def _problem(line: str, where: str) -> Problem:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
        raise InputError(f"{where} is not valid JSON ({reason}): write one JSON object a line") from None
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object: write one JSON object a line, with a prompt")
    return _from_row(row, where)


def _from_row(row: Mapping[str, Any], where: str) -> Problem:
    from grpo.rewards import RESERVED_COLUMNS

    if "prompt" not in row:
        raise InputError(f"{where} has no column 'prompt'; it has: {', '.join(row) or 'nothing'}")
    prompt = row["prompt"]
    if not isinstance(prompt, str) and not _is_messages(prompt):
        raise InputError(
            f'{where}: prompt must be text, or a list of {{"role": ..., "content": ...}} with text in both'
        )
    if not prompt:
        raise InputError(f"{where}: prompt is empty")
    for column in RESERVED_COLUMNS:
        if column in row:
            raise InputError(
                f"{where} has a column {column!r}, a name that rewards use for what was sampled: rename it"
            )
    return Problem(where, prompt, {name: value for name, value in row.items() if name != "prompt"})


def _is_messages(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in prompt
    )
