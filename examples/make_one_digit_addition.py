"""Write one_digit_addition.jsonl and one_digit_addition_eval.jsonl beside this file.

Sums of two digits, asked as chat messages with one worked example and an empty system message (so that a chat
template does not add its own). The split is by unordered pair: 3+4 and 4+3 are always in the same file.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

DIGITS = range(1, 10)  # not 0: repeating "7 + 0" would be as good as the answer


def question(a: int, b: int) -> str:
    return f"What is {a} + {b}?"


def row(a: int, b: int) -> dict[str, object]:
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": question(2, 2)},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": question(a, b)},
    ]
    return {"prompt": messages, "answer": str(a + b)}


def held_out(a: int, b: int) -> bool:
    """Whether the pair a <= b is for evaluation: a third of them, with every digit in three or four."""
    return (b - a) % 3 == 1


def split() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """(train, held out); the worked example is in neither."""
    pairs = [pair for pair in itertools.combinations_with_replacement(DIGITS, 2) if pair != (2, 2)]
    sides = [p for p in pairs if not held_out(*p)], [p for p in pairs if held_out(*p)]
    train, evaluation = ([row(*p) for pair in side for p in sorted({pair, pair[::-1]})] for side in sides)
    return train, evaluation


def main() -> None:
    folder = Path(__file__).parent
    for name, rows in zip(("one_digit_addition", "one_digit_addition_eval"), split(), strict=True):
        text = "".join(json.dumps(r) + "\n" for r in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(f"{name}.jsonl: {len(rows)} problems")


if __name__ == "__main__":
    main()
