"""Write train.jsonl and eval.jsonl beside this file: word problems of one or two steps, with whole-number answers.

Prompts are chat messages with three worked examples, so that a small model knows the form of an answer; the system
message is empty, so that a chat template adds none of its own. No kind of problem has the same numbers in both files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path

NAMES = ("Ada", "Ben", "Chloe", "Dev", "Elif", "Femi", "Grace", "Hiro", "Ines", "Jonas", "Kofi", "Lena")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "stickers")
EXAMPLES = (
    ("Sam has 2 kites and gets 3 more. How many kites does Sam have now?", "5"),
    ("Tia has 9 drums and sells 6 of them. How many drums does Tia have now?", "3"),
    ("There are 3 bags with 4 nuts in each. How many nuts are there in all?", "12"),
)

# Each kind of problem: its text, and its answer from the numbers a, b and c.
KINDS: tuple[tuple[str, Callable[[int, int, int], int]], ...] = (
    ("{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", lambda a, b, c: a + b),
    ("{name} had {a} {things} and gave {b} of them away. How many {things} are left?", lambda a, b, c: a - b),
    ("There are {a} boxes with {b} {things} in each. How many {things} are there in all?", lambda a, b, c: a * b),
    ("{name} shares {a} {things} equally among {b} friends. How many does each friend get?", lambda a, b, c: a // b),
    ("{name} has {a} {things}. {other} has {b} more than {name}. How many do they have together?",
     lambda a, b, c: 2 * a + b),
    ("{name} is {c} years old. {name} had {a} {things} and found {b}. How many {things} does {name} have now?",
     lambda a, b, c: a + b),
    ("{name} buys {a} packs of {b} {things} and already had {c}. How many {things} does {name} have now?",
     lambda a, b, c: a * b + c),
    ("{name} had {a} {things}, lost {b} and then bought {c}. How many {things} does {name} have now?",
     lambda a, b, c: a - b + c),
)  # fmt: skip
TRAIN, HELD_OUT = 40, 8  # of each kind


def digest(*parts: object) -> bytes:
    """Puts things in an order that looks random and is the same for every version of Python."""
    return hashlib.sha256(repr(parts).encode()).digest()


def fits(kind: int, a: int, b: int, c: int) -> bool:
    """Whether the numbers make sense, differ, and the answer is none of those that the text gives."""
    answer = KINDS[kind][1](a, b, c)
    if len({a, b, c}) < 3 or answer in (a, b, c) or answer < 1:
        return False
    return kind != 3 or a % b == 0


def row(kind: int, a: int, b: int, c: int) -> dict[str, object]:
    choice = digest(kind, a, b, c)
    name = NAMES[choice[0] % len(NAMES)]
    other = NAMES[(choice[0] + 1 + choice[1] % (len(NAMES) - 1)) % len(NAMES)]
    text = KINDS[kind][0].format(name=name, other=other, things=THINGS[choice[2] % len(THINGS)], a=a, b=b, c=c)
    messages = [{"role": "system", "content": ""}]
    for question, answer in EXAMPLES:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": text})
    return {"prompt": messages, "answer": str(KINDS[kind][1](a, b, c))}


def numbers(kind: int) -> list[tuple[int, int, int]]:
    """All that fit, in the order of their digest; numbers that the text does not show are not told apart."""
    shown = {letter for letter in "abc" if f"{{{letter}}}" in KINDS[kind][0]}
    found: dict[tuple[int, ...], tuple[int, int, int]] = {}
    first = range(4, 41) if kind == 3 else range(2, 13)
    for values in sorted(itertools.product(first, range(2, 11), range(2, 10)), key=lambda v: digest(kind, *v)):
        if fits(kind, *values):
            key = tuple(value for letter, value in zip("abc", values, strict=True) if letter in shown)
            found.setdefault(key, values)
    return list(found.values())


def split() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """(train, held out)."""
    train, held_out = [], []
    for kind in range(len(KINDS)):
        rows = [row(kind, *values) for values in numbers(kind)[: TRAIN + HELD_OUT]]
        train += rows[:TRAIN]
        held_out += rows[TRAIN:]
    return train, held_out


def main(folder: Path = Path(__file__).parent) -> None:
    for name, rows in zip(("train", "eval"), split(), strict=True):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
        print(f"{name}.jsonl: {len(rows)} problems")


if __name__ == "__main__":
    main()
