"""Write train.jsonl and eval.jsonl beside this file: sums of two numbers from 10 to 99, as chat messages.

Three worked examples show the form of an answer; the system message is empty, so that a chat template adds none of its
own. The split is by unordered pair: 34+57 and 57+34 are never in different files.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

EXAMPLES = ((21, 45), (38, 17), (60, 29))
TRAIN, HELD_OUT = 400, 200


def row(a: int, b: int) -> dict[str, object]:
    messages = [{"role": "system", "content": ""}]
    for x, y in EXAMPLES:
        messages.append({"role": "user", "content": f"What is {x} + {y}?"})
        messages.append({"role": "assistant", "content": f"{x} + {y} = {x + y}"})
    messages.append({"role": "user", "content": f"What is {a} + {b}?"})
    return {"prompt": messages, "answer": str(a + b)}


def split() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """(train, held out)."""
    pairs = [(a, b) for a in range(10, 100) for b in range(a, 100) if (a, b) not in EXAMPLES]
    draw = random.Random(0)
    chosen = draw.sample(pairs, TRAIN + HELD_OUT)
    rows = [row(*pair) if draw.random() < 0.5 else row(*pair[::-1]) for pair in chosen]
    return rows[:TRAIN], rows[TRAIN:]


def main(folder: Path = Path(__file__).parent) -> None:
    for name, rows in zip(("train", "eval"), split(), strict=True):
        text = "".join(json.dumps(r) + "\n" for r in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
        print(f"{name}.jsonl: {len(rows)} problems")


if __name__ == "__main__":
    main()
