"""Write train.jsonl and eval.jsonl beside this file: tiny Python functions to write, with tests and a solution.

Tests are assertions on one function, `solve`. A function that returns a constant, or its argument as it is, passes none
of the tasks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NUMBERS = (-7, 0, 3, 12, 40)
PAIRS = ((3, 8), (9, 2), (-4, 5), (6, 6))
WORDS = ("banana", "Level", "open sesame", "x", "programming in python")
LISTS = ([4, 9, 1, 7, 3], [12, 5, 5, 20], [8], [2, 4, 6, 8, 10, 12], [-3, 0, 11, -8])
SYSTEM = "You write Python. Answer with the function in a code block and nothing else."
EXAMPLE = ("Write solve(n) that returns n as text.", "def solve(n):\n    return str(n)")
EVERY = 5  # every fifth task is held out

Inputs = tuple[tuple[Any, ...], ...]


def one(values: tuple[Any, ...]) -> Inputs:
    """Each value as the only argument of a call."""
    return tuple((value,) for value in values)


def tasks() -> Iterator[tuple[str, str, str, Inputs]]:
    """(parameters, what the function returns, the expression that does, arguments of the tests)."""
    for k in range(2, 21):
        yield "n", f"n plus {k}", f"n + {k}", one(NUMBERS)
        yield "n", f"{k} minus n", f"{k} - n", one(NUMBERS)
        yield "n", f"n multiplied by {k}", f"n * {k}", one(NUMBERS)
        yield "n", f"whether n is a multiple of {k}", f"n % {k} == 0", one((k, k + 1, 3 * k, 5 * k - 1))
        yield "n", f"n, but never more than {k}", f"min(n, {k})", one((-2, k - 1, k + 1, k + 30))
        yield "a, b", f"the sum of a and b, multiplied by {k}", f"(a + b) * {k}", PAIRS
        yield "items", f"how many of the numbers in items are above {k}", f"sum(x > {k} for x in items)", one(LISTS)
        yield (
            "items",
            f"the list of the numbers in items that are below {k}",
            f"[x for x in items if x < {k}]",
            one(LISTS),
        )
        yield "items", f"the list items with {k} added to each number", f"[x + {k} for x in items]", one(LISTS)
    for k, ordinal in zip(range(2, 7), ("second", "third", "fourth", "fifth", "sixth"), strict=True):
        yield "n", f"n to the power of {k}", f"n ** {k}", one((-3, 0, 2, 5))
        yield "s", f"the first {k} characters of s", f"s[:{k}]", one(WORDS)
        yield "s", f"the last {k} characters of s", f"s[-{k}:]", one(WORDS)
        yield "s", f"s repeated {k} times", f"s * {k}", one(WORDS)
        yield (
            "items",
            f"the list of every {ordinal} item, starting with the first",
            f"items[::{k}]",
            one(LISTS),
        )
        yield "items", f"the sum of the first {k} numbers of items", f"sum(items[:{k}])", one(LISTS)
    for letter in "aeginop":
        yield "s", f"how often the letter {letter} is in s", f"s.count({letter!r})", one(WORDS)
        yield "s", f"s without the letter {letter}", f"s.replace({letter!r}, '')", one(WORDS)
        yield "s", f"whether s contains the letter {letter}", f"{letter!r} in s", one(WORDS)
    for what, expression in (
        ("s in capital letters", "s.upper()"),
        ("s backwards", "s[::-1]"),
        ("how many words are in s", "len(s.split())"),
        ("whether s reads the same backwards, capital letters or not", "s.lower() == s.lower()[::-1]"),
    ):
        yield "s", what, expression, one(WORDS)
    for what, expression in (
        ("the largest number in items", "max(items)"),
        ("the difference between the largest and the smallest number in items", "max(items) - min(items)"),
        ("the list items in ascending order", "sorted(items)"),
        ("the sum of the even numbers in items", "sum(x for x in items if x % 2 == 0)"),
    ):
        yield "items", what, expression, one(LISTS)


def row(parameters: str, what: str, expression: str, inputs: Inputs) -> dict[str, object] | None:
    """The task, or None where a constant or the first argument would do."""
    solve = eval(f"lambda {parameters}: {expression}")
    expected = [solve(*arguments) for arguments in inputs]
    if all(value == expected[0] for value in expected) or expected == [arguments[0] for arguments in inputs]:
        return None
    calls = [", ".join(map(repr, arguments)) for arguments in inputs]
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": EXAMPLE[0]},
        {"role": "assistant", "content": f"```python\n{EXAMPLE[1]}\n```"},
        {"role": "user", "content": f"Write solve({parameters}) that returns {what}."},
    ]
    return {
        "prompt": messages,
        "tests": [f"assert solve({call}) == {value!r}" for call, value in zip(calls, expected, strict=True)],
        "solution": f"def solve({parameters}):\n    return {expression}",
    }


def split() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """(train, held out), in an order that looks random and is the same for every version of Python."""
    ordered = sorted(tasks(), key=lambda task: hashlib.sha256(repr(task[:2]).encode()).digest())
    rows = [made for task in ordered if (made := row(*task)) is not None]
    return [made for n, made in enumerate(rows) if n % EVERY], rows[::EVERY]


def main(folder: Path = Path(__file__).parent) -> None:
    for name, rows in zip(("train", "eval"), split(), strict=True):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        print(f"{name}.jsonl: {len(rows)} tasks")


if __name__ == "__main__":
    main()
