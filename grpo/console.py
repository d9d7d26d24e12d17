"""What a run prints: a live progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


def printable(text: str) -> str:
    """`text` on one line, with everything that could steer a terminal written as an escape.

    Completions are untrusted: escape sequences, and characters that reverse the direction of text, are not
    printable.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class Display:
    """Prints lines, and the progress of training while `training` is open."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._total = 0

    @classmethod
    def silent(cls) -> Display:
        """For processes that leave talking to another."""
        return cls(Console(quiet=True))

    def say(self, text: str) -> None:
        """One line of trusted or `printable` text; markup in it has no effect."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def training(self, steps: int, done: int = 0) -> Iterator[None]:
        self._total = steps
        if not self.console.is_terminal:
            yield
            return
        columns = (
            TextColumn("training"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console) as self._progress:
            self._task = self._progress.add_task("training", total=steps, completed=done, figures="")
            yield
        self._progress = self._task = None

    def step(self, step: int, metrics: dict[str, Any]) -> None:
        """Show the figures of a finished step; without a terminal, of about ten steps of the run."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=step, figures=figures(metrics))
        elif step == 1 or step == self._total or step % max(1, self._total // 10) == 0:
            self.say(f"step {step}/{self._total}  {figures(metrics)}")


def figures(metrics: dict[str, Any]) -> str:
    """Reward or loss, KL and speed, each where it was measured."""
    shown = (
        ("reward", "reward", ".3f"),
        ("loss", "loss", ".4f"),
        ("kl", "kl", ".4f"),
        ("tokens_per_second", "tok/s", ",.0f"),
    )
    return "  ".join(f"{label} {metrics[name]:{form}}" for name, label, form in shown if name in metrics)
