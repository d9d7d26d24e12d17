"""Exact numeric answers: 1 if the completion's answer equals the data's, else 0."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from grpo.errors import InputError
from grpo.rewards.answer import last_tagged

# A sign counts only where it does not follow a digit, so that 7-3 holds 7 and 3. Commas count only between
# groups of three digits. The exponent is bounded: a completion cannot ask for a number of a billion digits; and so are
# the groups: a list of numbers without spaces is read in linear time.
NUMBER = re.compile(
    r"""(?:(?<![\d.)])[-+])?
        (?: (?:\d{1,3}(?:,\d{3}){1,20}(?![\d,]) | \d+) (?:\.\d+)? | \.\d+ )
        (?: [eE][-+]?\d{1,3}(?!\d) | /\d+ )?""",
    re.ASCII | re.VERBOSE,
)


def numeric_reward(*, completions: Sequence[str], answer: Sequence[Any], **_: Any) -> list[float | None]:
    """1.0 where the last number of a completion equals `answer` exactly, else 0.0.

    The last number inside <answer>...</answer> counts where there is such a pair, else the last of the text.
    46, 46.0, +46 and 46. are equal; so are 1,234 and 1234, .5 and 1/2. Nothing is rounded.
    """
    gold = [_gold(value, number) for number, value in enumerate(answer)]
    return [float(last_number(text) == want) for text, want in zip(completions, gold, strict=True)]


def last_number(text: str) -> Fraction | None:
    """The last number written in `text`, or None where there is none."""
    text = text.replace("\N{MINUS SIGN}", "-")
    tagged = last_tagged(text)
    found = NUMBER.findall(text if tagged is None else tagged)
    return parse_number(found[-1]) if found else None


def parse_number(text: str) -> Fraction | None:
    """The exact value of a number written in decimal, or None where it is not one."""
    try:
        return Fraction(text.strip().replace(",", ""))
    except (ValueError, ZeroDivisionError):  # also: more digits than Python agrees to convert
        return None


def _gold(value: Any, number: int) -> Fraction:
    gold = parse_number(str(value)) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    if gold is None:
        raise InputError(f"reward numeric: the answer of sample {number} is {value!r}, which is not a number")
    return gold
