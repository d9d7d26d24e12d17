"""The answer's form: 1 if the completion ends with exactly one <answer>...</answer>, else 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

TAG = re.compile(r"</?answer>")
ENDS_WITH_ANSWER = re.compile(r"<answer>\s*\S.*</answer>\s*\Z", re.DOTALL)


def format_reward(*, completions: Sequence[str], **_: Any) -> list[float | None]:
    """1.0 where a completion ends with its only <answer>...</answer>, and that is not empty; else 0.0."""
    return [float(has_answer_form(text)) for text in completions]


def has_answer_form(text: str) -> bool:
    return TAG.findall(text) == ["<answer>", "</answer>"] and ENDS_WITH_ANSWER.search(text) is not None
