"""How many completions a second the rewards for code and SQL judge: `python -m benchmarks.sandbox`.

The data are the ones of `examples/`; completions are the right answers. A round judges `--completions` of them; the
figures are of the median round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from grpo.rewards.code import code_reward
from grpo.rewards.sql import sql_reward
from grpo.sandbox import run_python

EXAMPLES = Path(__file__).parent.parent / "examples"


def rows(name: str, count: int) -> list[dict]:
    found = [json.loads(line) for line in (EXAMPLES / name / "train.jsonl").read_text().splitlines()]
    return (found * (count // len(found) + 1))[:count]


def contenders(count: int, workers: int) -> dict[str, tuple[int, Callable[[], list[float | None]]]]:
    """For each, how many it judges and the call that does: all are right."""
    code, sql = rows("code", count), rows("sql", count)
    solutions, tests = [row["solution"] for row in code], [row["tests"] for row in code]
    answers, databases = [row["answer"] for row in sql], [row["database"] for row in sql]
    doubles = ["print(2 * int(input()))"] * count
    pairs = [[{"stdin": "4", "stdout": "8"}]] * count

    def queries(engine: str) -> list[float | None]:
        return sql_reward(completions=answers, answer=answers, database=databases, engine=engine, workers=workers)

    return {
        "code, calls (two sandboxes)": (
            count, lambda: code_reward(completions=solutions, tests=tests, workers=workers)
        ),
        "code, programs (one sandbox)": (
            count, lambda: code_reward(completions=doubles, tests=pairs, workers=workers)
        ),
        "an empty program, one at a time": (
            count, lambda: [float(run_python("").exit_code == 0) for _ in range(count)]
        ),
        "sql, SQLite": (count, lambda: queries("sqlite")),
        "sql, DuckDB": (count, lambda: queries("duckdb")),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--completions", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="sandboxes at a time (default: 2)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="default: 5")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, {arguments.workers} workers, load {os.getloadavg()[0]:.1f} before")
    for name, (count, call) in contenders(arguments.completions, arguments.workers).items():
        seconds = []
        for _ in range(arguments.rounds):
            started = time.perf_counter()
            verdicts = call()
            seconds.append(time.perf_counter() - started)
            if verdicts != [1.0] * count:
                raise SystemExit(f"{name}: a right answer was not rewarded; nothing is reported")
        print(f"{name:34} {count / statistics.median(seconds):8.1f} a second")


if __name__ == "__main__":
    main()
