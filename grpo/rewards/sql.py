"""SQL: 1 if the completion's query gives what the reference query gives, else 0."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.errors import InputError
from grpo.rewards import sql_judge
from grpo.rewards.blocks import last_block
from grpo.rewards.pool import Failed, shared_pool

LANGUAGES = ("sql", "sqlite", "duckdb", "postgresql")
GRACE_S = 1.0  # what an item may take beyond the limits of its two queries, which end by themselves


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
    or .db file, which must not change while it is in use. Each query gets a fresh copy in memory and can only read:
    anything but one SELECT (writes, ATTACH, PRAGMA, functions on files, extensions, several statements) is refused,
    which is 0.0, and so is a query that fails, takes longer than `timeout_s` (seconds), more than `memory_mb` (MiB) or
    gives more rows than the answer.

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
    pool = shared_pool("grpo.rewards.sql_work:judge", workers or os.cpu_count() or 1, memory_mb << 20)

    def judged(queries: Mapping[int, str]) -> list[bool | str | Failed]:
        items = [
            (engine, database[number], query, answer[number], timeout_s, max_rows) for number, query in queries.items()
        ]
        return pool.map(items, 2 * timeout_s + GRACE_S)

    verdicts = judged({number: last_block(text, LANGUAGES).strip() for number, text in enumerate(completions)})
    for number, verdict in enumerate(verdicts):
        if isinstance(verdict, Failed):  # whose fault it is shows when the answer is judged by itself
            (verdict,) = judged({number: answer[number]})
            verdict = "it takes too long or too much memory" if isinstance(verdict, Failed) else verdict
            verdicts[number] = verdict if isinstance(verdict, str) else False
        if isinstance(verdicts[number], str):
            raise InputError(f"reward sql: the answer of sample {number} fails on its database: {verdicts[number]}")
    return [float(verdict is True) for verdict in verdicts]
