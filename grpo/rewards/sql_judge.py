"""One SQL query against another, on a database that it can only read."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import re
import resource
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

FLOAT_TOLERANCE = 1e-9  # relative, and absolute near 0
LONGEST_VALUE = 10_000_000  # bytes
STEPS_BETWEEN_LOOKS_AT_THE_CLOCK = 1000


class QueryError(Exception):
    """A query that fails, is refused or goes over a limit."""


@dataclass(frozen=True)
class Result:
    columns: int
    rows: list[tuple[Any, ...]]


def judge(engine: str, database: str, query: str, answer: str, timeout_s: float, max_rows: int) -> bool | str:
    """Whether `query` gives what the reference query `answer` gives; a text says why the reference itself fails.

    A query that fails, is refused, takes longer than `timeout_s` or gives more rows than the reference is not right.
    """
    try:
        reference = reference_result(engine, database, answer, timeout_s, max_rows)
    except QueryError as error:
        return str(error)
    try:
        result = run_query(engine, database, query, timeout_s, len(reference.rows))
    except QueryError:
        return False
    return same_result(result, reference, in_order=orders(answer))


@functools.lru_cache(maxsize=64)
def reference_result(engine: str, database: str, answer: str, timeout_s: float, max_rows: int) -> Result:
    return run_query(engine, database, answer, timeout_s, max_rows)


def run_query(engine: str, database: str, query: str, timeout_s: float, max_rows: int) -> Result:
    """What a query gives on a fresh copy of the database. Raises QueryError, also for more than `max_rows` rows."""
    try:
        with ENGINES[engine](database, query, timeout_s) as cursor:
            if cursor.description is None:
                raise QueryError("it is not a query")
            rows = cursor.fetchmany(max_rows + 1)
            if len(rows) > max_rows:
                raise QueryError(f"it gives more than {max_rows} rows")
            return Result(len(cursor.description), [tuple(row) for row in rows])
    except QueryError:
        raise
    except Exception as error:  # what engines raise is not of one kind: their errors, MemoryError, UnicodeError, ...
        raise QueryError(f"{type(error).__name__}: {error}"[:300]) from error


@contextlib.contextmanager
def _sqlite(database: str, query: str, timeout_s: float) -> Iterator[Any]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        _sqlite_master(database).backup(connection)
        # Texts that are not UTF-8 stay different from all others.
        connection.text_factory = lambda data: data.decode(errors="surrogateescape")
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000)
        connection.set_authorizer(_sqlite_allows)
        deadline = time.monotonic() + timeout_s
        connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_LOOKS_AT_THE_CLOCK)
        yield connection.execute(query)


def _sqlite_allows(action: int, first: str | None, second: str | None, *_: object) -> int:
    """Reading, and functions that reach nothing outside."""
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second and second.lower() not in REFUSED_FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


# The last two would let a query win by chance.
REFUSED_FUNCTIONS = ("load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "random", "randomblob")
SQLITE_FILE = re.compile(r"[^\n;]+\.(sqlite3?|db)")


@functools.lru_cache(maxsize=8)
def _sqlite_master(database: str) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    if SQLITE_FILE.fullmatch(database.strip()):
        from pathlib import Path

        with contextlib.closing(
            sqlite3.connect(f"{Path(database.strip()).absolute().as_uri()}?mode=ro", uri=True)
        ) as file:
            file.backup(connection)
    else:
        connection.executescript(database)
    connection.commit()
    return connection


@contextlib.contextmanager
def _duckdb(database: str, query: str, timeout_s: float) -> Iterator[Any]:
    duckdb = importlib.import_module("duckdb")
    statements = duckdb.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise QueryError("it is not one query that only reads")
    config = {
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "threads": 1,
        "memory_limit": f"{_memory_limit() // 2}B",
    }
    with contextlib.closing(duckdb.connect(":memory:", config=config)) as connection:
        connection.execute(database)
        connection.execute("SET lock_configuration = true")
        timer = threading.Timer(timeout_s, connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield connection.execute(statements[0])
        finally:
            timer.cancel()


ENGINES = {"sqlite": _sqlite, "duckdb": _duckdb}


def _memory_limit() -> int:
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    return 1 << 30 if limit == resource.RLIM_INFINITY else limit


# Strings, quoted names, comments, parentheses, words.
TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[()]|\w+""", re.DOTALL | re.VERBOSE
)


def orders(query: str) -> bool:
    """Whether a query has an ORDER BY outside of all parentheses."""
    depth, before = 0, ""
    for token in TOKEN.findall(query):
        if token.startswith(("--", "/*")):
            continue
        depth += (token == "(") - (token == ")")
        if depth == 0 and (before, token.lower()) == ("order", "by"):
            return True
        before = token.lower()
    return False


def same_result(result: Result, reference: Result, in_order: bool) -> bool:
    """Whether two results hold the same rows as often, and in the same order where that counts.

    Columns are compared by position, not by name. NULL equals NULL alone. Numbers are equal if they are, or, if one is
    a float, within 1e-9 of each other's size; a number never equals a text. Texts and blobs are equal byte by byte.
    """
    if result.columns != reference.columns or len(result.rows) != len(reference.rows):
        return False
    mine, other = (tuple(map(_normal_row, rows)) for rows in (result.rows, reference.rows))
    if not in_order:
        # Rows that are exactly in both need no pairing; the rest differ by rounding or are wrong.
        counted, reference_counted = Counter(mine), Counter(other)
        mine, other = (
            tuple(sorted(rest.elements(), key=_sort_key))
            for rest in (counted - reference_counted, reference_counted - counted)
        )
    return len(mine) == len(other) and all(
        all(map(_same_value, row, reference_row)) for row, reference_row in zip(mine, other, strict=True)
    )


def _normal_row(row: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(_normal, row))


def _normal(value: Any) -> Any:
    """The value in a type that can be compared: integers and decimals exact, what is unusual as text of its kind."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if value is None or isinstance(value, (int, str, bytes)):
        return value
    if isinstance(value, float):
        return value if value == value else "NaN of floats"
    return f"{type(value).__name__}: {value!r}"


def _same_value(value: Any, reference: Any) -> bool:
    if isinstance(value, float) or isinstance(reference, float):
        numbers = isinstance(value, (int, float)) and isinstance(reference, (int, float))
        return numbers and math.isclose(value, reference, rel_tol=FLOAT_TOLERANCE, abs_tol=FLOAT_TOLERANCE)
    return value == reference


def _sort_key(row: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows that differ by rounding alone get the same key.

    Numbers are cut to five digits after a multiplication that moves the edges of the cut away from short decimals,
    where rounding would push a value over them.
    """
    key: list[tuple[Any, ...]] = []
    for value in row:
        if value is None:
            key.append((0,))
        elif isinstance(value, (int, float)):
            near = float(f"{float(value) * 0.7390851332:.4e}") if abs(value) > 1e-6 and abs(value) < 1e300 else 0.0
            key.append((1, near))
        else:
            key.append((2, str(type(value)), value))
    return key
