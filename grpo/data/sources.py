"""Rows of data from wherever they are: a file, a folder that `datasets` saved, or the Hugging Face Hub."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.errors import InputError

Row = tuple[str, dict[str, Any]]  # where it stands, and its columns
LONGEST = 1000  # characters in the name of a source
FORMS = (
    "a .jsonl, .json, .csv, .tsv or .parquet file, a folder saved by datasets, NAME[:CONFIG][@SPLIT] on the Hub, or "
    "gym:TASK"
)


def read_rows(source: str) -> list[Row]:
    """(where, columns) of every row of `source`; `where`, such as "train.jsonl line 7", tells a person and is unique.

    `source` is one of

    - a file whose suffix says its form: `.jsonl` (also without a suffix), `.json` (a list of objects, or JSONL), `.csv`
      and `.tsv` with a header (every value stays text), `.parquet`;
    - a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`, with `@SPLIT` where it has several;
    - `NAME[:CONFIG][@SPLIT]` on the Hugging Face Hub; SPLIT is `train` where it is not given;
    - `gym:TASK[:OPTION=VALUE,...]`, a task of reasoning-gym (see `grpo.rewards.gym.gym_rows`).

    Raises InputError for what cannot be read.
    """
    if source.startswith("gym:"):
        from grpo.rewards.gym import gym_rows

        return [(f"{source} row {n}", row) for n, row in enumerate(gym_rows(source.removeprefix("gym:")), 1)]
    path = Path(source).expanduser()
    if not source or len(source) > LONGEST:
        raise InputError(f"{source[:40]!r} names no data: give {FORMS}")
    if path.is_dir():
        rows = _saved_rows(source, path, None)
    elif path.exists():
        rows = _file_rows(path)
    else:
        name, _, split = source.rpartition("@")
        folder = Path(name).expanduser()
        if name and folder.is_dir():
            rows = _saved_rows(source, folder, split)
        elif (path.suffix and path.suffix.lower() in READERS) or path.is_absolute() or source.startswith((".", "~")):
            raise InputError(f"{source} does not exist: give {FORMS}")
        else:
            rows = _hub_rows(source, name or source, split if name else "train")
    if not rows:
        raise InputError(f"{source} is empty: it needs rows with a prompt")
    return rows


def _file_rows(path: Path) -> list[Row]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path} ends in {path.suffix!r}: give {FORMS}")
    try:
        return reader(path)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _jsonl_rows(path: Path) -> list[Row]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    rows = [(f"{path} line {n}", line) for n, line in enumerate(lines, 1) if line.strip()]
    return [(where, _json_object(line, where)) for where, line in rows]


def _json_rows(path: Path) -> list[Row]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        return _jsonl_rows(path)
    rows = [(f"{path} row {n}", row) for n, row in enumerate(_parsed(text, str(path), "a list of objects"), 1)]
    for where, row in rows:
        if not isinstance(row, dict):
            raise InputError(f"{where} is not a JSON object: the list must hold objects with a prompt")
    return rows


def _json_object(line: str, where: str) -> dict[str, Any]:
    row = _parsed(line, where, "one JSON object a line")
    if not isinstance(row, dict):
        raise InputError(f"{where} is not a JSON object: write one JSON object a line, with a prompt")
    return row


def _parsed(text: str, where: str, wanted: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it is nested too deeply"
        raise InputError(f"{where} is not valid JSON ({reason}): write {wanted}") from None


def _csv_rows(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        rows = []
        try:
            header = reader.fieldnames or []
            for row in reader:
                where = f"{path} line {reader.line_num}"
                if None in row or None in row.values():
                    raise InputError(f"{where} has another number of fields than the {len(header)} of the header")
                rows.append((where, row))
        except csv.Error as error:
            raise InputError(f"{path} line {reader.line_num} is not CSV: {error}") from None
    return rows


def _parquet_rows(path: Path) -> list[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise InputError(f"{path} is not a Parquet file: {error}") from None
    return [(f"{path} row {n}", row) for n, row in enumerate(rows, 1)]


def _saved_rows(source: str, folder: Path, split: str | None) -> list[Row]:
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except FileNotFoundError:
        raise InputError(f"{folder} is a folder, and not one that datasets saved: give {FORMS}") from None
    if isinstance(saved, datasets.DatasetDict):
        if split is None and len(saved) > 1:
            raise InputError(
                f"{folder} has the splits {', '.join(saved)}: choose one, as in {folder}@{next(iter(saved))}"
            )
        split = split or next(iter(saved))
        if split not in saved:
            raise InputError(f"{folder} has no split {split!r}; it has: {', '.join(saved)}")
        saved = saved[split]
    elif split is not None:
        raise InputError(f"{source}: {folder} has no splits; leave @{split} out")
    return [(f"{source} row {n}", row) for n, row in enumerate(saved.to_list(), 1)]


def _hub_rows(source: str, name: str, split: str) -> list[Row]:
    import datasets

    repository, _, config = name.partition(":")
    try:
        loaded = datasets.load_dataset(repository, config or None, split=split)
    except Exception as error:  # network, names, splits and file formats fail in many ways, each with its own class
        reason = str(error).split("\n")[0]
        raise InputError(f"{source} is no file here, and the Hugging Face Hub does not give it: {reason}") from error
    return [(f"{source} row {n}", row) for n, row in enumerate(loaded.to_list(), 1)]


READERS: dict[str, Callable[[Path], list[Row]]] = {
    "": _jsonl_rows,
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _csv_rows,
    ".parquet": _parquet_rows,
}
