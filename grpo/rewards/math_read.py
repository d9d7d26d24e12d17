r"""Reading a mathematical answer, LaTeX or plain text, as a tree: lists, brackets, equations, words, quantities.

Only the structure is read here. What a formula means is left to math-verify's parser (`grpo.rewards.math_judge`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

from grpo.rewards.numeric import NUMBER, parse_number

CHARACTERS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "×": r"\times ", "·": r"\cdot ",
        "÷": r"\div ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ",
        "≈": r"\approx ", "±": r"\pm ", "∪": r"\cup ", "∩": r"\cap ",
        "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ", "²": "^2", "³": "^3", "\xa0": " ",
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
    }
)  # fmt: skip
# What only changes how a formula looks, in this order.
LOOKS = [
    (re.compile(r"\\right\.|\\(?:left|right|displaystyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])"), ""),
    (re.compile(r"\\!"), ""),
    (re.compile(r"(?<!\\)\\[,;: \n]|\\q?quad(?![a-zA-Z])|(?<!\\)~"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:mathrm|mathbf|mathit|textbf|textit|textrm|textnormal|mbox|operatorname)\s*\{"), r"\\text{"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\(?:leq|leqslant)(?![a-zA-Z])"), r"\\le "),
    (re.compile(r"\\(?:geq|geqslant)(?![a-zA-Z])"), r"\\ge "),
    (re.compile(r"\\(?:emptyset|varnothing)(?![a-zA-Z])"), r"\\{\\}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<![a-zA-Z\\])(sin|cos|tan|ln|log|exp|pi)(?![a-zA-Z])"), r"\\\1 "),
    (re.compile(r"(?<![a-zA-Z\\])(?:infinity|inf)(?![a-zA-Z])"), r"\\infty "),
    (re.compile(r"\\sqrt\s*([0-9]+)"), r"\\sqrt{\1}"),
    (re.compile(r"\s+"), " "),
]
END = re.compile(r"[,;]+$|(?<!\.)\.$")
DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}", r"\begin": r"\end"}

TOKEN = re.compile(
    r"\\(?:begin|end|cup|in)(?![a-zA-Z])|\\text\{ ?(?:or|and) ?\}|\\.|[][(){},;]|\b(?:or|and)\b|(?<![<>!:])="
)
LIST_SIGNS = (",", ";", "or", "and", r"\cup", r"\text{")
EQUALS = ("=", r"\in")
THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
SIGNS = re.compile(r"\\(pm|mp)(?![a-zA-Z]) ?")
RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt)(?![a-zA-Z])")
NAME = re.compile(
    r"""(?:m\ ?)? (?:\\angle\ )?
        (?: \([a-z](?:,\ ?[a-z])+\) | \\?[a-zA-Z]{1,20} | [a-zA-Z]+(?:\ [a-zA-Z]+)+ | \\text\{[^{}0-9]*\} )
        '* (?:_(?:\{\w{1,9}\}|\w))? (?:\(\w(?:,\ ?\w)*\))?""",
    re.ASCII | re.VERBOSE,
)
# Words, and what is written with digits but is no number: ratios, times, numbers to a base.
WORDS = re.compile(
    r"""(?=.*[a-z]{3}|no$|n/a$) [a-z][a-z\ '/.-]*
        | [0-9.]+(?:\ ?:\ ?[0-9.]+)+(?:\ *[ap]\.?m\.?)?
        | [0-9a-f]+_(?:\{[0-9]+\}|[0-9])""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
TEXT = re.compile(r"\\text\{([^{}]*)\}")
BUILDER = re.compile(r"[a-z] ?(?::|\\mid|\|) ?")
FRACTION = r"(?:\\frac ?(?:\{ ?([0-9]+) ?\} ?\{ ?([0-9]+) ?\}|([0-9]) ?([0-9])(?![0-9]))|([0-9]+) ?/ ?([0-9]+))"
MIXED = re.compile(rf"([-+]?)(?:([0-9]+) ?(?=\\)|([0-9]+) )?{FRACTION}")
REPEATING = re.compile(r"(-?)([0-9]*)\.([0-9]*)\\(?:overline|bar) ?\{ ?([0-9]+) ?\}")
SPACED = re.compile(r"[-+]?[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]+)?")

CURRENCY = {"\\$": "dollar", "$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee"}
PERCENT = re.compile(r" ?(?:\\?%|percent|\\text\{ ?percent ?\})$")
DEGREES = re.compile(r" ?(?:\^ ?\{? ?\\circ ?\}?|\\degree) ?(?:\\text\{ ?)?([CF]?)\}?$")
POWER = r"(?:\^\{?([23])\}?)?$"
UNIT = re.compile(r"(?<=\S) ?\\text\{ ?([^{}0-9]*?) ?\}" + POWER)
BARE_UNIT = re.compile(r"(?:(?<=[0-9})])|(?<=\\pi ))( ?)([a-zA-Z][a-zA-Z/. ]*)" + POWER)
ABBREVIATIONS = {
    alias: name
    for name, aliases in {
        "meter": "m metre", "centimeter": "cm centimetre", "millimeter": "mm millimetre", "kilometer": "km kilometre",
        "inch": "in inche", "foot": "ft feet", "yard": "yd", "mile": "mi", "gram": "g", "kilogram": "kg",
        "milligram": "mg", "pound": "lb", "ounce": "oz", "liter": "l litre", "milliliter": "ml millilitre",
        "second": "s sec", "minute": "min", "hour": "h hr", "mile/hour": "mph", "kilometer/hour": "kph",
        "hertz": "hz", "°": "deg degree", "square": "sq", "cubic": "cu", "/": "per",
    }.items()
    for alias in aliases.split()
}  # fmt: skip
NO_UNIT = re.compile(
    r"(?:is|are|was|were|not|isn|no|or|and|but|if|when|then|than|to|from|of|wrong|right|maybe|perhaps|"
    r"mod|factorial|squared|cubed|pi|dozen|hundred|thousand|million|billion|trillion|half|halves|third|thirds|quarter|quarters)"
)
FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")  # of degrees, which are then no unit


@dataclass(frozen=True)
class Several:
    """Answers in any order: 3 or 4; 3, 4; {3, 4}; a union."""

    text: str
    items: tuple[Answer, ...]


@dataclass(frozen=True)
class Bracketed:
    """Entries whose order counts: a pair, a vector, an interval. `ends` are its brackets."""

    text: str
    ends: str
    items: tuple[Answer, ...]


@dataclass(frozen=True)
class Equation:
    """What stands between equals signs; `name` is that of what is determined: x in x = 6/2 = 3, None in 2 x + z = 1."""

    text: str
    name: str | None
    values: tuple[Answer, ...]


@dataclass(frozen=True)
class Words:
    """`letters` are those that count: its letters, digits, colons and underscores, in lower case."""

    text: str
    letters: str


@dataclass(frozen=True)
class Quantity:
    """A formula with its unit, "" where there is none; `number` is its value where it is written as a number."""

    text: str
    formula: str
    number: Fraction | None
    unit: str


Answer = Several | Bracketed | Equation | Words | Quantity


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Answer:
    """The tree of an answer; raises RecursionError where it is nested too deeply."""
    text = plain(text)
    parts = split(text, LIST_SIGNS)
    if len(parts) > 1:
        return Several(text, tuple(map(read, parts)))
    exact, about, decimal = text.partition(r"\approx")
    if about:
        return read(decimal if NAME.fullmatch(exact.strip()) else exact)
    sides = split(text, EQUALS)
    if len(sides) > 1:
        name = sides[0] if NAME.fullmatch(sides[0]) else None
        return Equation(text, name and plain(name), tuple(map(read, sides[1:] if name else sides)))
    if SIGNS.search(text):
        return Several(text, (read(_signed(text, "+", "-")), read(_signed(text, "-", "+"))))
    ends, entries = _bracketed(text)
    if ends == r"\{\}":
        if len(entries) == 1 and (builder := BUILDER.match(entries[0])):
            return read(entries[0][builder.end() :])
        return Several(text, tuple(map(read, entries)))
    if ends and len(entries) > 1:
        return Bracketed(text, ends, tuple(map(read, entries)))
    if ends == "()" and entries:
        return read(entries[0])
    words = TEXT.sub(r"\1", text)
    if WORDS.fullmatch(words):
        return Words(text, re.sub(r"[^a-z0-9:_]", "", words.lower()))
    return _quantity(text)


def listed(text: str) -> Answer:
    """The tree of a number with commas, read as the list that it may be as well: 100,200 as 100 and 200."""
    return Several(text, tuple(map(read, text.split(","))))


def plain(text: str) -> str:
    """The text without what changes no meaning: delimiters of mathematics, sizes, kinds of spaces, outer groups."""
    text = text.translate(CHARACTERS).strip().strip("*")
    for pattern, replacement in LOOKS:
        text = pattern.sub(replacement, text)
    before = None
    while text != before:
        before = text
        text = END.sub("", text.strip().lstrip("=:")).strip()
        for left, right in DELIMITERS:
            inside = text[len(left) : -len(right)]
            if text.startswith(left) and text.endswith(right) and left not in inside and len(text) > len(left + right):
                text = inside
        group = re.match(r"(?:\\text ?)?\{", text)
        if group and _end(text, group.end() - 1) == len(text):
            text = text[group.end() : -1]
    return text


def split(text: str, signs: tuple[str, ...]) -> list[str]:
    """The parts between `signs` outside of all brackets. A comma between three digits and others is none."""
    is_condition = RELATION.search(text) is not None  # x > 1 and x < 2 is one, not two
    parts, depth, start = [], 0, 0
    for token in TOKEN.finditer(text):
        sign = token[0]
        if sign in CLOSING:
            depth += 1
        elif sign in CLOSING.values():
            depth -= 1
        elif depth == 0 and sign.startswith(signs):
            if (sign == "," and THOUSANDS.match(text, token.start())) or ("and" in sign and is_condition):
                continue
            parts.append(text[start : token.start()])
            start = token.end()
    parts = [part.strip() for part in (*parts, text[start:])]
    return [part for part in parts if part] or [text]


def is_balanced(text: str) -> bool:
    """Whether every bracket closes."""
    depth = 0
    for token in TOKEN.finditer(text):
        depth += (token[0] in CLOSING) - (token[0] in CLOSING.values())
        if depth < 0:
            return False
    return depth == 0


def _signed(text: str, pm: str, mp: str) -> str:
    return SIGNS.sub(lambda sign: pm if sign[1] == "pm" else mp, text)


def _bracketed(text: str) -> tuple[str, list[str]]:
    """The brackets around all of `text` and the entries in them; ("", []) without."""
    left = next((left for left in ("(", "[", r"\{") if text.startswith(left)), None)
    if left is None or _end(text, 0) != len(text):
        return "", []
    right = next((right for right in (")", "]", r"\}") if text.endswith(right)), "")
    inside = text[len(left) : len(text) - len(right)].strip()
    if ", " not in inside:
        inside = THOUSANDS.sub(", ", inside)
    return left + right, split(inside, (",", ";")) if inside else []


def _end(text: str, start: int) -> int:
    """Where the bracket that opens at `start` has closed; -1 where it does not."""
    depth = 0
    for token in TOKEN.finditer(text, start):
        depth += (token[0] in CLOSING) - (token[0] in CLOSING.values())
        if depth == 0:
            return token.end()
    return -1


def _quantity(text: str) -> Quantity:
    formula, unit = _with_unit(text)
    formula = plain(formula)
    value = number(formula)
    return Quantity(text, formula if value is None else str(value), value, unit)


def _with_unit(text: str) -> tuple[str, str]:
    """A formula and the name of its unit, which is words in \\text, or without it what can be nothing else."""
    sign = "-" if text.startswith("-") else ""
    for mark, currency in CURRENCY.items():
        if text.startswith(mark, len(sign)):
            return sign + text[len(sign) + len(mark) :], currency
    if found := PERCENT.search(text):
        return text[: found.start()], "%"
    if (found := DEGREES.search(text)) and not FUNCTION.search(text):
        return text[: found.start()], "°" + found[1]
    if found := UNIT.search(text):
        words, power, is_unit = found[1], found[2], True
    elif found := BARE_UNIT.search(text):
        words, power, is_unit = found[2], found[3], _is_bare_unit(found[2], bool(found[1]))
    else:
        return text, ""
    tokens = re.findall(r"[a-z]+|/", words.lower())
    if not is_unit or not tokens or any(map(NO_UNIT.fullmatch, tokens)):
        return text, ""
    return text[: found.start()], _unit(tokens) + (f"^{power}" if power else "")


def _is_bare_unit(words: str, is_spaced: bool) -> bool:
    """5 m, 5cm and 5 apples have a unit; 5m, 5xy and 5 x y are products."""
    tokens = re.findall(r"[a-z]+", words.lower())
    if not all(_singular(token) in ABBREVIATIONS or (is_spaced and len(token) > 2) for token in tokens):
        return False
    return min(map(len, tokens)) > 1 or "/" in words or (is_spaced and len(tokens) == 1)


def _unit(tokens: list[str]) -> str:
    """One name for each unit: sq ft, square feet and ft^2 are foot^2."""
    names, power = [], ""
    for token in tokens:
        name = ABBREVIATIONS.get(_singular(token), _singular(token))
        if name in ("square", "cubic"):
            power = {"square": "^2", "cubic": "^3"}[name]
        else:
            names.append(name + power)
            power = ""
    return " ".join(names).replace(" / ", "/")


def _singular(token: str) -> str:
    return token.removesuffix("s") if len(token) > 2 else token


def number(text: str) -> Fraction | None:
    """The exact value of an integer, a decimal, a fraction or a mixed number; None for anything else."""
    if NUMBER.fullmatch(text):
        return parse_number(text)
    if SPACED.fullmatch(text):
        return parse_number(text.replace(" ", ""))
    if found := REPEATING.fullmatch(text):
        sign, whole, digits, period = found.groups()
        before = (whole or "0") + digits
        value = Fraction(int(before + period) - int(before), 10 ** len(digits) * (10 ** len(period) - 1))
        return -value if sign else value
    found = MIXED.fullmatch(text)
    if found is None:
        return None
    sign, whole, spaced, *parts = found.groups()
    top, bottom = (int(part) for part in parts if part is not None)
    if bottom == 0:
        return None
    value = int(whole or spaced or 0) + Fraction(top, bottom)
    return -value if sign == "-" else value
