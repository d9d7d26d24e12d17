"""`grpo watch`: a run that another process trains, live in the terminal."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

HELP = "watch a run live in the terminal"
DESCRIPTION = (
    "Watch a run while another process trains: sparklines, alarms, the latest answers, the time left. Ctrl-C ends it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="time between looks (default: 2)"
    )
    parser.add_argument("--once", action="store_true", help="look once and leave; so it does without a terminal")


def run(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from grpo.errors import InputError
    from grpo.watch import Watch

    if not arguments.interval > 0:
        raise InputError(f"--interval {arguments.interval}: must be a positive number of seconds")
    watch, console = Watch(arguments.run_dir), Console(highlight=False)
    if arguments.once or not console.is_terminal:
        console.print(watch.picture())
        return 0
    with Live(watch.picture(), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while not watch.is_over:
                time.sleep(arguments.interval)
                live.update(watch.picture(), refresh=True)
        except KeyboardInterrupt:
            pass
    return 0
