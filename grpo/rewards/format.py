"""The answer's form: 1 if the completion is made of the sections that are asked for, else 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo.errors import InputError

NAME = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
INVISIBLE = re.compile(r"[\s\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]*")


def format_reward(*, completions: Sequence[str], sections: str = "", **_: Any) -> list[float | None]:
    """1.0 where a completion is the sections <NAME>...</NAME> of `sections` (names between spaces), else 0.0.

    Each comes once, in that order, and holds something that can be seen; outside of them there is only white space. A
    tag is exactly <NAME> or </NAME>, in small or large letters as given. Without `sections` it ends with its only
    <answer>...</answer>, and what comes before is free.

    Raises InputError for names that are no words or are given twice.
    """
    names = sections.split()
    if len(set(names)) != len(names) or not all(map(NAME.fullmatch, names)):
        raise InputError(
            f"reward format: sections is {sections!r}; it must be different names with spaces between them"
        )
    if not names:
        return [float(has_answer_form(text)) for text in completions]
    tags = re.compile("|".join(f"</?{re.escape(name)}>" for name in names))
    return [float(has_sections(text, names, tags)) for text in completions]


def has_answer_form(text: str) -> bool:
    if [text.count("<answer>"), text.count("</answer>")] != [1, 1]:
        return False
    content, _, rest = text.partition("<answer>")[2].partition("</answer>")
    return "</answer>" in text.partition("<answer>")[2] and not _is_empty(content) and not rest.strip()


def has_sections(text: str, names: Sequence[str], tags: re.Pattern[str]) -> bool:
    if tags.findall(text) != [tag for name in names for tag in (f"<{name}>", f"</{name}>")]:
        return False
    # Outside, opening tag, inside, closing tag, outside, ...: between the tags of the list above.
    between = tags.split(text)
    return not any(part.strip() for part in between[::2]) and not any(map(_is_empty, between[1::2]))


def _is_empty(text: str) -> bool:
    return INVISIBLE.fullmatch(text) is not None
