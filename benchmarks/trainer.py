"""``python -m benchmarks trainer``: our trainer beside TRL's on the CPU, rollout and training apart.

The same model, prompts, reward and settings; each in fresh processes, in turns. The first step of a process warms up,
and does not count. Tokens are those of the completions, in both phases.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .report import MIB, machine, print_table, write_json
from .trainer_steps import TRAINERS, Work

ROUNDS = 3
WORKS = (
    Work("the embedded model: 58 tokens, 0.3 million parameters"),
    Work(
        "a random model: 32,768 tokens, 3 layers of 128", vocabulary=32768, questions=8, num_generations=8,
        max_completion_length=32, micro_batch=32, steps=4,
    ),
)  # fmt: skip
PHASES = ("rollout", "train")


def run_trainer(folder: Path, works: Sequence[Work] = WORKS, rounds: int = ROUNDS) -> int:
    about = machine("cpu")
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    names: tuple[str, ...] = TRAINERS
    if importlib.util.find_spec("trl") is None:
        print("TRL and TRL with our loss: left out, trl is not installed")
        names = TRAINERS[:1]
    content: dict[str, Any] = {"machine": about, "works": []}
    for work in works:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for _ in range(rounds):
            for name in names:
                runs[name].append(run_once(name, work))
        summaries = {name: summary(found) for name, found in runs.items()}
        print_summaries(work, summaries)
        content["works"].append({"work": asdict(work), "trainers": summaries})
    write_json(folder / "trainer.json", content)
    return 0


def run_once(name: str, work: Work) -> dict[str, Any]:
    """Tokens a second of each phase in one process, and its peak memory."""
    command = [sys.executable, "-m", "benchmarks.trainer_steps", name, json.dumps(asdict(work))]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{name} failed on {work.name}: {result.stderr.strip().splitlines()[-1]}")
    *steps, last = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"')]
    counted = steps[1:]
    tokens = sum(step["tokens"] for step in counted)
    found = {phase: tokens / sum(step[phase] for step in counted) for phase in PHASES}
    found["whole step"] = tokens / sum(step["rollout"] + step["train"] + step["rest"] for step in counted)
    return found | {"peak_bytes": last["peak_bytes"]}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and for tokens a second the extremes."""
    found: dict[str, Any] = {}
    for key in (*PHASES, "whole step"):
        values = [run[key] for run in runs]
        found[key] = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    peaks = [run["peak_bytes"] for run in runs if run["peak_bytes"] is not None]
    return found | {"peak_bytes": statistics.median(peaks) if peaks else None}


def print_summaries(work: Work, summaries: dict[str, dict[str, Any]]) -> None:
    def cell(values: dict[str, float]) -> str:
        return f"{values['median']:,.0f} ({values['least']:,.0f} to {values['most']:,.0f})"

    rows = [
        (name, *(cell(found[key]) for key in (*PHASES, "whole step")), f"{(found['peak_bytes'] or 0) / MIB:,.0f} MiB")
        for name, found in summaries.items()
    ]
    columns = ("", *(f"{key}, tokens/s" for key in (*PHASES, "whole step")), "peak memory")
    print_table(work.name, columns, rows)
