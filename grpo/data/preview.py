"""What the model will see of the data, and how long it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from grpo.console import printable
from grpo.data.loaders import Problem
from grpo.data.prompts import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUCKETS = 8
BAR = 40


@dataclass(frozen=True)
class Preview:
    """One problem as it is put to the model: `text` is what `ids` stand for, special tokens included."""

    where: str
    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    columns: dict[str, Any]


def preview(problem: Problem, tokenizer: PreTrainedTokenizerBase) -> Preview:
    ids = encode(problem.prompt, tokenizer, problem.where)
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    tokens = tuple(map(str, tokenizer.convert_ids_to_tokens(ids)))
    return Preview(problem.where, str(text), tuple(ids), tokens, problem.columns)


def preview_lines(shown: Preview) -> list[str]:
    """As lines that are safe to print: the text with its line breaks, every token with its id, the columns."""
    return [
        f"{shown.where}: {len(shown.ids)} tokens",
        *(f"  | {printable(line)}" for line in shown.text.split("\n")),
        "  tokens: " + " ".join(f"{printable(t)}:{i}" for t, i in zip(shown.tokens, shown.ids, strict=True)),
        *(f"  {printable(name)} = {printable(repr(value))}" for name, value in shown.columns.items()),
    ]


def length_lines(lengths: Sequence[int]) -> list[str]:
    """A summary and a histogram of prompt lengths in tokens."""
    cuts = quantiles(lengths, n=10, method="inclusive") if len(lengths) > 1 else [lengths[0]] * 9
    width = max(1, -(-(max(lengths) + 1 - min(lengths)) // BUCKETS))
    starts = range(min(lengths), max(lengths) + 1, width)
    counts = [sum(start <= n < start + width for n in lengths) for start in starts]
    digits = len(str(starts[-1] + width - 1))
    return [
        f"prompt tokens: shortest {min(lengths)}, median {cuts[4]:g}, 90 % up to {cuts[8]:g}, longest {max(lengths)}",
        *(
            f"  {start:>{digits}}-{start + width - 1:<{digits}} {'#' * -(-count * BAR // max(counts)):<{BAR}} {count}"
            for start, count in zip(starts, counts, strict=True)
        ),
    ]
