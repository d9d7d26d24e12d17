"""Folders of runs as `grpo train` leaves them, and a browser that looks at reports."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from grpo.config import TrainConfig

Row = dict[str, Any]


def sample(step: int, split: str, question: str, completion: str, right: bool, **more: Any) -> Row:
    return {
        "step": step, "split": split, "question": question, "fingerprint": "f", "prompt": f"{question}?",
        "completion": completion, "tokens": len(completion), "truncated": False, "rewards": {"numeric": float(right)},
    } | more  # fmt: skip


def metrics(step: int, of: int, evaluated: bool = False) -> Row:
    done = step / of
    row: Row = {"step": step}
    if step:
        row |= {
            "reward": 0.2 + 0.6 * done + 0.05 * math.sin(step), "rewards/numeric/mean": 0.2 + 0.6 * done,
            "rewards/xml/format/mean": done, "kl": 0.1 * done, "entropy": 1 - done / 2, "accuracy": done,
            "completions/mean_length": 100 + step, "time/rollout": 3.0, "time/train": 1.0, "time/step": 5.0,
            "tokens_per_second": 1000.0, "frac_all_right": 0.0, "of_its/own": float(step),
        }  # fmt: skip
    if evaluated:
        middle = 0.4 + 0.4 * done
        row |= {
            "eval_accuracy": middle, "eval_accuracy_low": middle - 0.1, "eval_accuracy_high": middle + 0.1,
            "eval_mean_length": 100.0 + step, "time/evaluation": 2.0,
        }  # fmt: skip
    return row


def samples(steps: int) -> list[Row]:
    """Ten held-out questions, of which 4 are right before and 8 after; two probe questions; a group a step."""
    rows = []
    for step, right in ((0, 4), (steps, 8)):
        rows += [sample(step, "probe", f"probe {n}", f"probed at {step}", step > 0) for n in range(2)]
        rows += [sample(step, "held_out", f"sum {n}", f"it is {step + n}", n < right) for n in range(10)]
    for step in range(1, steps + 1):
        rows += [sample(step, "train", f"train {step}", f"try {n}", n == 0) for n in range(4)]
    return rows


def lines(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@dataclass
class RunFolder:
    """What is written of a run."""

    metrics: list[Row] = field(default_factory=lambda: [metrics(n, 50, n % 10 == 0) for n in range(51)])
    samples: list[Row] | None = field(default_factory=lambda: samples(50))
    alarms: list[Row] | None = None
    config: Row | None = field(default_factory=lambda: asdict(TrainConfig(max_steps=50, beta=0.1)))

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(lines(self.metrics))
        for name, rows in (("samples", self.samples), ("alarms", self.alarms)):
            if rows is not None:
                (folder / f"{name}.jsonl").write_text(lines(rows))
        if self.config is not None:
            (folder / "train_config.json").write_text(json.dumps(self.config))
            (folder / "environment.json").write_text(json.dumps({"python": "3.11", "command": ["train"]}))
        return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for longer: while it is open, nothing else in the process can have an event loop."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        yield started
        started.close()


@dataclass
class Visit:
    """A page with everything that it should not have done."""

    page: Page
    complaints: list[str]

    def draw_all(self) -> None:
        self.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        self.page.wait_for_function("document.querySelectorAll('.plot:not([data-drawn])').length === 0")


class Visits:
    """Opens reports and writes down what they should not do: errors, dialogs, requests for anything but themselves."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.visits: list[Visit] = []

    def __call__(self, path: Path, **options: Any) -> Visit:
        page, complaints = self.browser.new_context(**options).new_page(), []
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        address = path.resolve().as_uri()
        allowed = (address, "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(allowed) else complaints.append(r.url))
        self.visits.append(Visit(page, complaints))
        page.goto(address)
        return self.visits[-1]

    def close(self) -> None:
        for seen in self.visits:
            seen.page.context.close()
            assert seen.complaints == []


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visits]:
    visits = Visits(browser)
    yield visits
    visits.close()
