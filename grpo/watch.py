"""A run as it goes, in the terminal: sparklines of its metrics, alarms, the latest answers, the time that is left."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from grpo.console import printable
from grpo.data.prompts import prompt_text
from grpo.errors import InputError

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 24
ANSWERS = 4
CURVES = (
    ("eval_accuracy", "held-out accuracy", ".1%"),
    ("accuracy", "training accuracy", ".1%"),
    ("reward", "reward", ".3f"),
    ("frac_reward_zero_std", "dead groups", ".0%"),
    ("completions/mean_length", "mean length (tokens)", ".1f"),
    ("completions/clipped_ratio", "truncated", ".0%"),
    ("kl", "KL (nats a token)", ".4f"),
    ("entropy", "entropy (nats a token)", ".3f"),
    ("grad_norm", "gradient norm", ".3g"),
    ("tokens_per_second", "tokens a second", ",.0f"),
)


class Tail:
    """The rows of a JSONL file that another process writes: `read` adds those that are new to `rows`.

    A file that became shorter, or another one, was written anew by a run that began again or went on from a checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self._file = 0
        self._offset = 0

    def read(self) -> None:
        try:
            with open(self.path, "rb") as file:
                found = self.path.stat()
                if found.st_ino != self._file or found.st_size < self._offset:
                    self.rows, self._offset, self._file = [], 0, found.st_ino
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return
        self._offset += len(whole) + len(newline)
        self.rows += [json.loads(line) for line in whole.splitlines()]


class Watch:
    """What is on the screen of `grpo watch` for the run in a folder; raises InputError where there is none."""

    def __init__(self, run: Path) -> None:
        if not (run / "train_config.json").is_file():
            raise InputError(f"{run}: there is no train_config.json; give the folder of a run")
        self.run = run
        self.max_steps: int = json.loads((run / "train_config.json").read_text(encoding="utf-8"))["max_steps"]
        self.metrics, self.samples, self.alarms = (
            Tail(run / f"{name}.jsonl") for name in ("metrics", "samples", "alarms")
        )

    @property
    def step(self) -> int:
        return self.metrics.rows[-1]["step"] if self.metrics.rows else 0

    @property
    def is_over(self) -> bool:
        return self.step >= self.max_steps

    def picture(self) -> RenderableType:
        """The run as it is now."""
        for file in (self.metrics, self.samples, self.alarms):
            file.read()
        parts: list[RenderableType] = [self.headline(), curves(self.metrics.rows)]
        parts += [alarm_panel(alarm) for alarm in self.alarms.rows]
        answers = latest_answers(self.samples.rows)
        if answers:
            parts.append(Panel(Group(*answers), title="latest answers", title_align="left"))
        return Group(*parts)

    def headline(self) -> Text:
        left = time_left(self.metrics.rows, self.max_steps)
        end = "done" if self.is_over else "" if left is None else f"about {timedelta(seconds=round(left))} left"
        parts = (f"step {self.step} of {self.max_steps}", end, printable(str(self.run)))
        return Text("  ".join(filter(None, parts)), style="bold")


def curves(rows: Sequence[dict[str, Any]]) -> Table:
    """A sparkline for each metric that was measured, with its first, lowest, highest and latest value."""
    table = Table("metric", "", "first", "low", "high", "now", box=None, pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    for name, title, form in CURVES:
        values = [row[name] for row in rows if row.get(name) is not None]
        if values:
            figures = (values[0], min(values), max(values), values[-1])
            table.add_row(title, sparkline(values), *(format(value, form) for value in figures))
    return table


def sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """At most `width` bars; each is the mean of its share of the values, its height from the lowest to the highest."""
    width = min(width, len(values))
    edges = [n * len(values) // width for n in range(width + 1)]
    means = [statistics.fmean(values[a:b]) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span else 0] for value in means)


def time_left(rows: Sequence[dict[str, Any]], max_steps: int) -> float | None:
    """Seconds for the steps that are left: at the mean of the last 20, evaluations included."""
    recent = [row for row in rows if "time/step" in row][-20:]
    if not recent:
        return None
    seconds = statistics.fmean(row["time/step"] + row.get("time/evaluation", 0.0) for row in recent)
    return seconds * (max_steps - recent[-1]["step"])


def alarm_panel(alarm: dict[str, Any]) -> Panel:
    text = Text(f"{printable(alarm['message'])}. Try: {printable(alarm['advice'])}")
    title = Text(f"{alarm['severity']}: {printable(alarm['name'])} (step {alarm['step']})")
    return Panel(
        text, title=title, title_align="left", border_style="red" if alarm["severity"] == "critical" else "yellow"
    )


def latest_answers(rows: Sequence[dict[str, Any]]) -> list[Text]:
    """The answers of the newest step that has any; completions are untrusted, and shown as one line of text each."""
    newest = [row for row in rows if row["step"] == rows[-1]["step"]]
    probed = [row for row in newest if row["split"] == "probe"] or newest
    return [
        Text.assemble(
            (printable(prompt_text(row["prompt"]))[-60:], "dim"),
            " → ",
            printable(row["completion"])[:200],
            "  ",
            (" ".join(f"{name} {value:.3g}" for name, value in row["rewards"].items() if value is not None), "cyan"),
        )
        for row in probed[:ANSWERS]
    ]
