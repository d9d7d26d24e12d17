"""Which completions a report shows: questions before and after, and groups that were trained on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.console import printable
from grpo.groups import correctness

Row = dict[str, Any]

QUESTIONS = 1500  # of each split that is compared
GROUPS = 30  # that were trained on, up to twice as many
GROUP = 16  # completions of such a group
LENGTH = 4000  # characters of a text
SIZE = 5_000_000  # bytes of all texts of a report


@dataclass(frozen=True)
class Pair:
    """The earliest and the latest answer to a question; the same row where there is one alone."""

    first: Row
    last: Row


@dataclass(frozen=True)
class Samples:
    pairs: dict[str, list[Pair]]
    """By split, "probe" or "held_out"."""
    groups: list[list[Row]]
    """The completions of one training group each, evenly spread over the steps."""


def choose(rows: Iterable[Row]) -> Samples:
    """Goes through the rows of samples.jsonl once and keeps the first and the last of each held-out question."""
    pairs: dict[str, dict[tuple[str, int], Pair]] = defaultdict(dict)
    groups = SpreadGroups(GROUPS)
    seen: Counter[str] = Counter()
    place = None
    for row in rows:
        if row["split"] == "train":
            groups.add(row)
            continue
        if place != (row["split"], row["step"]):
            place, seen = (row["split"], row["step"]), Counter()
        # A question that is asked several times at a step is compared try by try.
        key = row["question"], seen[row["question"]]
        seen[row["question"]] += 1
        known = pairs[row["split"]].get(key)
        pairs[row["split"]][key] = Pair(known.first if known else row, row)
    return Samples({split: list(found.values()) for split, found in pairs.items()}, groups.read())


class SpreadGroups:
    """Keeps the rows of at least `wanted` groups, if there are as many, and of fewer than twice as many."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._rows: dict[tuple[int, str], list[Row]] = {}
        self._stride, self._number = 1, -1
        self._key: tuple[int, str] | None = None

    def add(self, row: Row) -> None:
        """The rows of a group follow each other."""
        key = row["step"], row["question"]
        if key != self._key:
            self._number, self._key = self._number + 1, key
            if len(self._rows) == 2 * self.wanted - 1 and self._number % self._stride == 0:
                self._rows = dict(list(self._rows.items())[::2])
                self._stride *= 2
        if self._number % self._stride == 0:
            self._rows.setdefault(key, []).append(row)

    def read(self) -> list[list[Row]]:
        return list(self._rows.values())


def is_right(row: Row) -> bool | None:
    """Whether the first reward, or the first of its parts, gives full marks; None without a verdict."""
    names = tuple(row["rewards"])
    if not names:
        return None
    value = correctness(names, tuple(row["rewards"].values()), row.get("parts") or {})
    return None if value is None else value >= 1


def cards(samples: Samples) -> list[Row]:
    """What the page shows, a card a question, as JSON; at most QUESTIONS of a split, evenly spread."""
    found = []
    for split in ("probe", "held_out"):
        for pair in spread(samples.pairs.get(split, []), QUESTIONS):
            rows = [pair.first] if pair.first is pair.last else [pair.first, pair.last]
            found.append(_card(split, rows))
    return found + [_card("train", rows[:GROUP]) for rows in samples.groups]


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, evenly spread."""
    number = min(len(items), most)
    return [items[n * len(items) // number] for n in range(number)]


def fitting(cards: Sequence[Row], size: int = SIZE) -> tuple[list[Row], int]:
    """The cards, their texts cut so that together they take at most about `size` bytes, and the length of a text."""
    length = LENGTH
    while length > 100:
        cut = [_cut(card, length) for card in cards]
        if len(json.dumps(cut, ensure_ascii=False).encode()) <= size:
            break
        length //= 2
    return cut, length


def shown(text: str) -> str:
    """The text on its lines, with everything that is not printable written as an escape."""
    return "\n".join(printable(line) for line in text.expandtabs(4).split("\n"))


def shortened(text: str, length: int) -> str:
    """The beginning and the end, where answers are."""
    if len(text) <= length:
        return text
    tail = length // 3
    left_out = f"{len(text) - length:,} characters left out"
    return f"{text[: length - tail]}\n[... {left_out} ...]\n{text[-tail:]}"


def _card(split: str, rows: Sequence[Row]) -> Row:
    first = rows[0]
    prompt = first["prompt"]
    messages = [("", prompt)] if isinstance(prompt, str) else [(m["role"], m["content"]) for m in prompt]
    answer = first.get("answer")
    return {
        "split": split,
        "question": first["question"],
        "prompt": messages,
        "answer": None if answer is None else str(answer),
        "answers": [
            {
                "step": row["step"],
                "text": row["completion"],
                "tokens": row["tokens"],
                "truncated": row["truncated"],
                "right": is_right(row),
                "scores": [*row["rewards"].items(), *(row.get("parts") or {}).items()],
            }
            for row in rows
        ],
    }


def _cut(card: Row, length: int) -> Row:
    def safe(text: str) -> str:
        return shown(shortened(text, length))

    return card | {
        "question": safe(card["question"]),
        "prompt": [(safe(role), safe(text)) for role, text in card["prompt"]],
        "answer": None if card["answer"] is None else safe(card["answer"]),
        "answers": [
            answer | {"text": safe(answer["text"]), "scores": [(safe(name), value) for name, value in answer["scores"]]}
            for answer in card["answers"]
        ],
    }
