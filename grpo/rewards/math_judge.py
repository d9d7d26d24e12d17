r"""Whether two mathematical answers are the same: by exact numbers, by text, and by math-verify for the rest.

What math-verify leaves open is decided here: units count, a number that is rounded is another number, the words of an
answer are words and not products of their letters, and several answers are not one.
"""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from grpo.rewards.numeric import NUMBER, parse_number

LONGEST = 500  # characters of an answer; a longer one is none

UNIT = re.compile(
    r"""(?P<value>.*?[\d})]) \s* (?:\\[ ,;!]|~)* \s*
        (?: (?P<percent>\\?%) | (?P<degree>\^\{?\\circ\}?|°|\\degree|degrees?)
          | \\(?:text|mathrm|textrm)\{\s*(?P<unit>[^{}]*?)\s*\}(?P<power>\^\{?\d\}?)? | (?P<word>\ [a-zA-Z][a-zA-Z/ ]*) )""",
    re.VERBOSE | re.DOTALL,
)
WORDS = re.compile(r"(?:\\(?:text|mathrm|textbf|mathbf|textrm)\{([^{}]*)\}|([a-zA-Z][a-zA-Z' -]+[a-zA-Z]))")
SEVERAL = re.compile(r"\b(?:or|and)\b|\\(?:text|mathrm)\{\s*(?:or|and)\s*\}", re.IGNORECASE)
BARE_FRACTION = re.compile(r"\\d?t?frac\s*(?:\{(\d+)\}\s*\{(\d+)\}|(\d)\s*(\d))")


@dataclass(frozen=True)
class Answer:
    """An answer as it is compared. `text` is LaTeX without what says nothing; `unit` is "" where none is given."""

    text: str
    number: Fraction | None
    unit: str
    words: str | None
    is_several: bool


def same_answer(answer: str, gold: str) -> bool:
    """Whether `answer` is equal to `gold`; both are LaTeX or plain text, without dollar signs or with.

    Numbers: equal exactly, in whatever form; 0.333 is not 1/3. Where `gold` is irrational, a decimal counts that is
    right to six places. Percent signs: 50% is 50 and is 0.5. Units: where both give one it must be the same; one may be
    left out. Words: equal but for case and spaces. Several answers, as "3 or 4", are a set, as is {3, 4}.
    """
    if len(answer) > LONGEST:
        return False
    given, wanted = read(answer), read(gold)
    if not given.text or given.is_several != wanted.is_several:
        return False
    if given.words is not None or wanted.words is not None:
        return given.words == wanted.words
    if given.unit and wanted.unit and given.unit != wanted.unit and "%" not in (given.unit, wanted.unit):
        return False
    hundredths = (given.unit == "%") != (wanted.unit == "%")
    if given.number is not None and wanted.number is not None:
        numbers = {given.number, given.number / 100, given.number * 100} if hundredths else {given.number}
        return wanted.number in numbers
    return _verified(given.text, wanted.text)


def read(text: str) -> Answer:
    text = _plain(text)
    words = WORDS.fullmatch(text)
    if words:
        return Answer(text, None, "", "".join((words[1] or words[2]).casefold().split()), False)
    several = SEVERAL.search(text) is not None or text.startswith(("{", "\\{"))
    unit, found = "", UNIT.fullmatch(text)
    if found:
        text = found["value"]
        named = (found["unit"] or found["word"] or "").strip().casefold() + (found["power"] or "")
        unit = "%" if found["percent"] else "°" if found["degree"] else named.replace(" ", "")
    return Answer(text, _number(text), unit.removesuffix("s") if len(unit) > 2 else unit, None, several)


def is_readable(gold: str) -> bool:
    """Whether an answer of the data can be compared with anything."""
    found = read(gold)
    return bool(found.text) and (found.number is not None or found.words is not None or bool(_parsed(found.text)))


def _plain(text: str) -> str:
    text = text.strip().replace("\N{MINUS SIGN}", "-").replace("\\$", "").replace("$", "").strip()
    for left, right in (("\\(", "\\)"), ("\\[", "\\]")):
        if text.startswith(left) and text.endswith(right):
            text = text[len(left) : -len(right)].strip()
    return text.rstrip(".").replace("\\left", "").replace("\\right", "").replace("\\!", "").strip()


def _number(text: str) -> Fraction | None:
    text = text.replace("{,}", ",").strip()
    sign, text = (-1, text[1:]) if text.startswith("-") and "frac" in text else (1, text)
    fraction = BARE_FRACTION.fullmatch(text)
    if fraction:
        numerator, denominator = (int(part) for part in fraction.groups() if part is not None)
        return sign * Fraction(numerator, denominator) if denominator else None
    return parse_number(text) if NUMBER.fullmatch(text) or re.fullmatch(r"-?\d+\.", text) else None


def _verified(answer: str, gold: str) -> bool:
    from math_verify import verify

    found, wanted = _parsed(answer), _parsed(gold)
    # Time-outs by SIGALRM are left to whoever runs this: they hold in a main thread alone.
    return bool(found and wanted and verify(list(wanted), list(found), timeout_seconds=None))


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Any, ...]:
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns of time-outs that are not set
    boxed = [LatexExtractionConfig(boxed_match_priority=0)]
    # Without the text itself, which it adds last, what cannot be parsed equals nothing.
    found = parse(f"\\boxed{{{text}}}", boxed, fallback_mode="no_fallback", parsing_timeout=None)
    return tuple(part for part in found if not isinstance(part, str))
