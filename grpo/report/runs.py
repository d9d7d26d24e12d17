"""The folder of a run, read as far as it is written: a run that is training now is one, too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.console import printable
from grpo.errors import InputError
from grpo.report.samples import Samples, choose

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a report shows of one run. `name` is safe to print; every other text is as the run left it."""

    name: str
    rows: list[Row]
    """Metrics, a row a step; step 0 holds the evaluation before training."""
    alarms: list[Row]
    samples: Samples
    config: dict[str, Any]
    environment: dict[str, Any]

    @property
    def steps(self) -> int:
        """The last step that is written."""
        return self.rows[-1]["step"]


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of these folders, each under the name of its folder, or under its path where that says more.

    Raises InputError for a folder without metrics, and for a file that is not what a run writes.
    """
    names = [folder.resolve().name for folder in folders]
    return [
        _read(folder, name if names.count(name) == 1 else str(folder))
        for folder, name in zip(folders, names, strict=True)
    ]


def _read(folder: Path, name: str) -> Run:
    metrics = folder / "metrics.jsonl"
    if not metrics.is_file():
        raise InputError(f"{folder}: there is no metrics.jsonl; give the folder of a run")
    rows = list(_rows(metrics))
    if not rows:
        raise InputError(f"{folder} has no metrics yet")
    return Run(
        name=printable(name),
        rows=rows,
        alarms=list(_rows(folder / "alarms.jsonl")),
        samples=choose(_rows(folder / "samples.jsonl")),
        config=_object(folder / "train_config.json"),
        environment=_object(folder / "environment.json"),
    )


def _rows(path: Path) -> Iterator[Row]:
    """One row after the other, because samples may be larger than memory; a last line that was cut off is no row."""
    if not path.is_file():
        return
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            row = _parsed(line, f"{path}, line {number}")
            if not isinstance(row.get("step"), int):
                raise InputError(f"{path}, line {number}: step is {row.get('step')!r}; it must be a whole number")
            yield row


def _object(path: Path) -> dict[str, Any]:
    return _parsed(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else {}


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{where} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{where} is a {type(value).__name__}; it must be a JSON object")
    return value
