"""SQL: 1 if the completion's query gives what the reference query gives, else 0."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import queue
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpo.errors import InputError
from grpo.rewards import sql_judge
from grpo.rewards.blocks import last_block

LANGUAGES = ("sql", "sqlite", "duckdb", "postgresql")
GRACE_S = 1.0  # what a process may take beyond the limit that it keeps to by itself
START_S = 60.0


def sql_reward(
    *,
    completions: Sequence[str],
    answer: Sequence[str],
    database: Sequence[str],
    engine: str = "sqlite",
    timeout_s: float = 2.0,
    max_rows: int = 10_000,
    memory_mb: int = 1024,
    workers: int | None = None,
    **_: Any,
) -> list[float | None]:
    """1.0 where a completion's query gives the rows that the query `answer` gives, else 0.0.

    The query is the last ```sql block of a completion, else its last block without a language, else all of it; of its
    last <answer>, if it has one.
    `database` is a script of SQL statements that makes the database, or, for SQLite, the path of a .sqlite, .sqlite3
    or .db file. Each query gets a fresh copy in memory and can only read: anything but one SELECT (writes, ATTACH,
    PRAGMA, functions on files, extensions, several statements) is refused, which is 0.0, and so is a query that
    fails, takes longer than `timeout_s` (seconds), more than `memory_mb` (MiB) or gives more rows
    than the answer.

    Results are compared as `sql_judge.same_result` says; the order of rows counts only if `answer` has an ORDER BY
    outside of parentheses, and then also among rows that it leaves in any order.

    `engine` is sqlite or duckdb (extra `[sql]`). `workers` processes judge at once, by default one for each core.

    Raises InputError for a database or an answer that cannot be used.
    """
    if engine not in sql_judge.ENGINES:
        raise InputError(f"reward sql: engine is {engine!r}; choose from {', '.join(sorted(sql_judge.ENGINES))}")
    if engine == "duckdb" and importlib.util.find_spec("duckdb") is None:
        raise InputError("reward sql: engine duckdb needs duckdb: pip install 'grpo-kernels[sql]'")
    for name, values in (("answer", answer), ("database", database)):
        for number, value in enumerate(values):
            if not isinstance(value, str) or not value.strip():
                raise InputError(f"reward sql: the {name} of sample {number} is {value!r}; it must be SQL")
    if not completions:
        return []

    def one(number: int) -> float:
        request = {
            "engine": engine, "database": database[number], "query": last_block(completions[number], LANGUAGES).strip(),
            "answer": answer[number], "timeout_s": timeout_s, "max_rows": max_rows,
        }  # fmt: skip
        judge = judges.get()
        try:
            verdict = judge.verdict(request, timeout_s + GRACE_S)
        finally:
            judges.put(judge)
        if "reference" in verdict:
            raise InputError(f"reward sql: the answer of sample {number} fails on its database: {verdict['reference']}")
        return float(verdict["right"])

    count = min(workers or os.cpu_count() or 1, len(completions))
    judges: queue.SimpleQueue[Judge] = queue.SimpleQueue()
    with contextlib.ExitStack() as stack:
        for _number in range(count):
            judges.put(stack.enter_context(contextlib.closing(Judge(engine, memory_mb << 20))))
        pool = stack.enter_context(ThreadPoolExecutor(count))
        return list(pool.map(one, range(len(completions))))


class Judge:
    """A process that judges queries; one that hangs or dies is replaced."""

    def __init__(self, engine: str, memory_bytes: int) -> None:
        self._engine, self._memory_bytes = engine, memory_bytes
        self._process: subprocess.Popen[bytes] | None = None

    def verdict(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to a request; `limit_s` seconds each for its reference query and its query."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = self._start()
            if self._line(START_S) != b"ready":
                self.close()
                raise RuntimeError("the process that judges SQL does not start")
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._line(limit_s)
        failed: dict[str, Any] = {"reference": "it takes too long or too much memory"}
        if line == b"reference":
            failed = {"right": False}
            line = self._line(limit_s)
        if line is None:
            self.close()
            return failed
        return json.loads(line)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        self._read = b""
        return subprocess.Popen(
            [sys.executable, "-I", "-B", str(Path(sql_judge.__file__)), self._engine, str(self._memory_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _line(self, limit_s: float) -> bytes | None:
        """The next line; None where it does not come in time or the process has ended."""
        assert self._process and self._process.stdout
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    return None
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line
