"""`grpo report`: what a person reads of runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from grpo.errors import InputError

HELP = "write a page about a run, or about several beside each other"
DESCRIPTION = (
    "Write one HTML file about a run, also while it trains: accuracy before and after, alarms, curves, samples, "
    "configuration. It needs no network and no server. Several runs are compared in one file."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument(
        "--output", type=Path, metavar="FILE",
        help="the page to write (default: report.html in the run's folder; of several, comparison.html in the first)",
    )  # fmt: skip
    parser.add_argument(
        "--figure", type=Path, metavar="FILE",
        help="draw the main curves as a .png, .svg or .pdf; a page is then written only with --output",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from grpo.report.runs import read_runs

    runs = read_runs(arguments.runs)
    if arguments.figure:
        from grpo.report.figure import draw

        draw({run.name: run.rows for run in runs}, arguments.figure)
        print(f"figure written to {arguments.figure}")
    if arguments.output or not arguments.figure:
        from grpo.journal import write_atomically
        from grpo.report.page import render

        path = arguments.output or arguments.runs[0] / ("report.html" if len(runs) == 1 else "comparison.html")
        page = render(runs)
        try:
            write_atomically(path, page)
        except OSError as error:
            raise InputError(f"--output {path} cannot be written: {error.strerror}") from error
        print(f"report written to {path}")
    return 0
