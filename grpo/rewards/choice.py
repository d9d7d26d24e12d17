r"""Multiple choice: 1 if the completion chooses the data's letter, else 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo.errors import InputError
from grpo.rewards.answer import last_tagged
from grpo.rewards.math import last_box

LETTERS = "ABCDEFGHIJ"
WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textrm)\{([^{}]*)\}")
# One letter and marks around it: B, (b), **B**, B.
WHOLE = re.compile(r"[\W_]*([A-Ja-j])[\W_]*")
# A letter, and what it labels: "B) Paris", "(B) Paris", "**B.** Paris".
LABEL = re.compile(r"[\s(\[*_]*([A-J])[\])*_]*(?:(?<=[\])])|[.:])[\s*_]*(.*)", re.DOTALL)
# A letter that is said to be the answer. The words are in any case, the letter is a capital; I is a word of its own.
STATED = re.compile(
    r"\b(?i:answer)\b\W{0,5}(?:(?i:is|would be|should be|must be)\b)?\W{0,5}"
    r"(?:(?i:the|option|choice|letter)\W{1,5}){0,2}([A-HJ]|I(?! [a-z]))\b(?!['\u2019])(?=(.{0,20}))"
)
# Another letter right after the first, as in "B or C", "A/B", or another label.
HEDGE = re.compile(r"[\W_]*(?:(?:or|and)\b[\W_]*)?[A-J]\b")
OTHER_LABEL = re.compile(r"(?<![\w'\u2019])[A-J][\])]|^\W{0,3}[A-J][.:]", re.MULTILINE)
# Letters that stand alone, but for the words A and I.
LETTER = re.compile(r"(?<![\w'\u2019])(?:[B-HJ]|[AI](?! (?!(?:or|and)\b)[a-z]))(?![\w'\u2019])")


def choice_reward(
    *,
    completions: Sequence[str],
    answer: Sequence[Any],
    choices: Sequence[Sequence[Any] | None] | None = None,
    **_: Any,
) -> list[float | None]:
    r"""1.0 where a completion chooses `answer`, a letter from A to J, else 0.0.

    Its last <answer>...</answer> counts, else its last \boxed{...}, else all of it: one letter, a letter that labels a
    text, as in B) Paris, a letter that is said to be the answer, or the only capital letter that stands alone there.
    Where several letters are offered it chooses none.

    With a column `choices`, a list of texts, the text of a choice is as good as its letter, and a letter that labels
    another choice's text is no choice. `answer` may then be such a text, or a whole number that counts from 0.

    Raises InputError for an answer that is none of these, and for choices that are not 1 to 10 texts.
    """
    given = [None] * len(completions) if choices is None else choices
    texts = [_texts(value, number) for number, value in enumerate(given)]
    golds = [_gold(value, texts[number], number) for number, value in enumerate(answer)]
    return [
        float(chosen_letter(completion, own) == gold)
        for completion, own, gold in zip(completions, texts, golds, strict=True)
    ]


def chosen_letter(text: str, choices: Sequence[str] = ()) -> str | None:
    """The letter that a completion chooses, None for none or several. `choices`: `normal` texts."""
    tagged = last_tagged(text)
    part = text if tagged is None else tagged
    boxed = last_box(part)
    part = WRAPPER.sub(r"\1", part if boxed is None else boxed)
    by_text, whole, label = letter_of_text(part, choices), WHOLE.fullmatch(part), LABEL.fullmatch(part)
    if by_text or whole:
        found = {by_text or "", whole[1].upper() if whole else ""} - {""}
    elif stated := STATED.findall(part):
        letter, rest = stated[-1]
        found = set() if HEDGE.match(rest) else {letter}
    elif label:
        letter, rest = label.groups()
        labelled = letter_of_text(rest, choices)
        several = not labelled and (HEDGE.match(rest) or OTHER_LABEL.search(rest))
        found = set() if several else {letter, labelled or letter}
    else:
        found = set(LETTER.findall(part))
    return found.pop() if len(found) == 1 else None


def letter_of_text(text: str, choices: Sequence[str]) -> str | None:
    """The letter of the only choice that has this text."""
    wanted = normal(text)
    return LETTERS[choices.index(wanted)] if choices.count(wanted) == 1 else None


def normal(text: Any) -> str:
    """The text without case, marks around it, and differences of white space."""
    return " ".join(str(text).casefold().split()).strip(" .*\"'")


def _texts(value: Any, number: int) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence) or not 1 <= len(value) <= len(LETTERS):
        raise InputError(
            f"reward choice: the choices of sample {number} are {value!r}; they must be a list of 1 to 10 texts"
        )
    return [normal(text) for text in value]


def _gold(value: Any, choices: Sequence[str], number: int) -> str:
    found = None
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        found = LETTERS[value]
    elif isinstance(value, str):
        whole = WHOLE.fullmatch(value)
        found = whole[1].upper() if whole else letter_of_text(value, choices)
    if found is None or (choices and LETTERS.index(found) >= len(choices)):
        raise InputError(
            f"reward choice: the answer of sample {number} is {value!r}; it must be a letter from A to J, or one of "
            "the choices by its text or its number from 0"
        )
    return found
