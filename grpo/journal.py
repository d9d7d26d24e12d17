"""The files of a run that grow: a JSON object a line, each line whole or, after a kill, cut off and ignored."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Journal:
    """Appends rows to a JSONL file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the rows and hand them to the system, so that another process sees them."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))

    def rows(self) -> list[dict[str, Any]]:
        return read_jsonl(self.path) if self.path.exists() else []

    def cut(self, step: int) -> list[dict[str, Any]]:
        """Forget the rows after `step`, which a resumed run writes again; returns those that stay."""
        kept = [row for row in self.rows() if row["step"] <= step]
        write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in kept))
        return kept


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file; a last line that was cut off is no row."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            rows.append(json.loads(line))
    return rows


def write_atomically(path: Path, text: str) -> None:
    """Whoever opens the file sees what was there before, or all of `text`."""
    staged = path.with_name(f".{path.name}.new")
    with open(staged, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, path)
