"""`grpo report`: what a person reads of runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from grpo.errors import InputError

HELP = "draw the curves of runs"
DESCRIPTION = "Draw the curves of one run or of several: held-out accuracy with its 95% interval, reward, KL, length."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--figure", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf to write")


def run(arguments: argparse.Namespace) -> int:
    from grpo.journal import read_jsonl
    from grpo.report.figure import draw

    rows = {}
    for path in arguments.runs:
        metrics = path / "metrics.jsonl"
        if not metrics.is_file():
            raise InputError(f"{path}: there is no metrics.jsonl; give the folder of a run")
        rows[path.name] = read_jsonl(metrics)
    draw(rows, arguments.figure)
    print(f"figure written to {arguments.figure}")
    return 0
