"""What a process of the math reward does with an item."""

from __future__ import annotations

from grpo.rewards.math_judge import is_readable, same_answer

same_answer(r"\frac{x}{2}", "0.5x")  # what the parser prepares with its first formula counts for no item


def compare(answer: str, gold: str) -> bool | str:
    """Whether two answers are the same, or "unreadable" where that of the data is."""
    return same_answer(answer, gold) if is_readable(gold) else "unreadable"
