r"""Whether two mathematical answers are the same: structure as `math_read` has it, exact numbers, else math-verify.

What math-verify leaves open is decided here: units count, a number that is rounded is another number, the words of an
answer are words and not products of their letters, and several answers are not one.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Sequence
from typing import Any

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended import latex2sympy2 as latex  # type: ignore[import-untyped]
from math_verify import verify

from grpo.rewards.math_read import Answer, Bracketed, Equation, Quantity, Several, Words, is_balanced, listed, read

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns of time-outs that are not set

LOOKS = latex.NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
CASE = latex.ConversionConfig(lowercase_symbols=False)
LONGEST = 300  # characters of an answer, or twice those of the data's; a longer one is none
DIGITS = 6  # significant ones, of a decimal that stands for an irrational number
SPACES = re.compile(r"(?<![0-9]) | (?![0-9])")  # 1 1/2 is not 11/2
PRIMES = re.compile(r"([a-zA-Z])('+)")  # the parser leaves them out
# What the parser would read as something else, or only after long: numbers in a row, two points in a number, numbers to
# a base, ratios, quotes, subscripts of subscripts.
MISREAD = re.compile(r"(?<!_)[0-9.] +[0-9]|[0-9]\.[0-9]*\.|[0-9]_|[0-9] ?: ?[0-9]|['\"]|_\w_|[^\x00-\x7f]")


def same_answer(answer: str, gold: str) -> bool:
    r"""Whether `answer` is equal to `gold`; both are LaTeX or plain text, without dollar signs or with.

    - Numbers are equal exactly, in whatever form: 0.5 is 1/2, 0.333 is not 1/3. Where one is irrational and the other a
      decimal, their first six significant digits must be the same.
    - Formulas are equal where math-verify says so; x and X are two variables. Equations and inequalities are equal if
      one is a multiple of the other.
    - x = 3 is 3 and a chain of equations must be right everywhere, but x = 3 is not y = 3.
    - Units: where both give one it must be the same, as ft is feet; one may be left out. 50% is 50 and is 0.5.
    - Several answers (3 or 4; 3, 4; {3, 4}; \pm 3) are equal in any order, pairs and intervals in theirs, with the same
      brackets.
    - Words are equal but for case and what is not a letter.
    """
    if len(answer) > max(LONGEST, 2 * len(gold)):
        return False
    try:
        return same(read(answer), read(gold))
    except RecursionError:
        return False


def is_readable(gold: str) -> bool:
    """Whether an answer of the data can be compared with others than itself."""
    try:
        return _is_readable(read(gold))
    except RecursionError:
        return False


def same(answer: Answer, gold: Answer) -> bool:
    if not answer.text:
        return False
    if SPACES.sub("", answer.text) == SPACES.sub("", gold.text):
        return True
    if isinstance(answer, Equation) or isinstance(gold, Equation):
        return _same_equation(answer, gold)
    if isinstance(answer, Several) or isinstance(gold, Several):
        return _same_several(answer, gold)
    if isinstance(answer, Words) or isinstance(gold, Words):
        return isinstance(answer, Words) and isinstance(gold, Words) and answer.letters == gold.letters
    if isinstance(answer, Bracketed) and isinstance(gold, Bracketed):
        return answer.ends == gold.ends and _in_order(answer.items, gold.items)
    if isinstance(answer, Quantity) and isinstance(gold, Quantity):
        return _same_quantity(answer, gold)
    # An interval and a condition or a union.
    is_number = any(isinstance(one, Quantity) and one.number is not None for one in (answer, gold))
    return not is_number and _verified(answer.text, gold.text)


def _same_equation(answer: Answer, gold: Answer) -> bool:
    if not isinstance(gold, Equation):
        assert isinstance(answer, Equation)
        return all(same(value, gold) for value in answer.values)
    if not isinstance(answer, Equation):
        return gold.name is not None and same(answer, gold.values[-1])
    if answer.name is not None and answer.name == gold.name:
        return all(same(value, gold.values[-1]) for value in answer.values)
    return _verified(answer.text, gold.text)


def _same_several(answer: Answer, gold: Answer) -> bool:
    given, wanted = _items(answer), _items(gold)
    if len(given) == len(wanted):
        if _in_any_order(given, wanted):
            return True
    elif len(given) == 1 and isinstance(answer, Quantity) and "," in answer.text:
        return same(listed(answer.text), gold)
    elif len(wanted) == 1 and isinstance(gold, Quantity) and "," in gold.text:
        return same(answer, listed(gold.text))
    return r"\cup" in answer.text + gold.text and _verified(answer.text, gold.text)


def _items(answer: Answer) -> tuple[Answer, ...]:
    return answer.items if isinstance(answer, Several) else (answer,)


def _in_order(given: Sequence[Answer], wanted: Sequence[Answer]) -> bool:
    return len(given) == len(wanted) and all(map(same, given, wanted))


def _in_any_order(given: Sequence[Answer], wanted: Sequence[Answer]) -> bool:
    left = list(wanted)
    for item in given:
        found = next((other for other in left if same(item, other)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _same_quantity(answer: Quantity, gold: Quantity) -> bool:
    if answer.unit and gold.unit and answer.unit != gold.unit:
        return False
    if _same_value(answer, gold):
        return True
    if answer.unit != gold.unit:
        if "%" in (answer.unit, gold.unit):
            return _same_percentage(answer, gold)
        return _verified(answer.text, gold.text)  # 5 m may also be a product, as 5m is
    return False


def _same_value(answer: Quantity, gold: Quantity) -> bool:
    if answer.number is not None and gold.number is not None:
        return answer.number == gold.number
    return (
        _verified(answer.formula, gold.formula)
        or _is_decimal_of(answer, gold.formula)
        or _is_decimal_of(gold, answer.formula)
    )


def _same_percentage(answer: Quantity, gold: Quantity) -> bool:
    share, number = (answer, gold) if answer.unit == "%" else (gold, answer)
    if share.number is not None and number.number is not None:
        return share.number == 100 * number.number
    return _verified(share.formula, f"100({number.formula})")


def _is_readable(gold: Answer) -> bool:
    if isinstance(gold, Words):
        return True
    if isinstance(gold, (Several, Bracketed)):
        return all(map(_is_readable, gold.items))
    if isinstance(gold, Equation) and gold.name is not None:
        return all(map(_is_readable, gold.values))
    if isinstance(gold, Quantity) and gold.number is not None:
        return True
    return _parsed(gold.formula if isinstance(gold, Quantity) else gold.text) is not None


def _verified(answer: str, gold: str) -> bool:
    try:
        return _is_equal(answer, gold)
    except MemoryError:
        raise
    except Exception:  # SymPy's, of many kinds, where it has no way to compare
        return False


def _is_equal(answer: str, gold: str) -> bool:
    found, wanted = _parsed(answer), _parsed(gold)
    if found is None or wanted is None:
        return False
    given, conditions = _relations(found), _relations(wanted)
    if given and conditions:
        return len(given) == len(conditions) and all(any(_is_multiple(one, two) for two in given) for one in conditions)
    if not _agree_somewhere(found, wanted):
        return False
    # Time-outs by SIGALRM are left to whoever runs this: they hold in a main thread alone.
    return bool(verify(wanted, found, timeout_seconds=None, allow_set_relation_comp=True))


def _relations(expression: Any) -> list[tuple[str, Any]]:
    """Each as (sign, difference of its sides), of a chain one for each sign; only <, <=, = and != are left."""
    found = []
    for part in expression.args if isinstance(expression, sympy.And) else (expression,):
        if not isinstance(part, sympy.Rel):
            return []
        is_greater = part.rel_op in (">", ">=")
        difference = part.rhs - part.lhs if is_greater else part.lhs - part.rhs
        found.append((part.rel_op.replace(">", "<"), difference))
    return found


def _is_multiple(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Whether two relations say the same because one's difference is a multiple of the other's."""
    ratio = sympy.simplify(one[1] / other[1])
    if one[0] != other[0] or not ratio.is_number or not ratio.is_finite or ratio.is_zero:
        return False
    return bool(ratio.is_positive) if "<" in one[0] else True


def _agree_somewhere(found: Any, wanted: Any) -> bool:
    """Whether two formulas have one value at some point. math-verify takes any difference below 1e-15 for none."""
    if not (isinstance(found, sympy.Expr) and isinstance(wanted, sympy.Expr)):
        return True
    names = sorted(found.free_symbols | wanted.free_symbols, key=str)
    point = {name: sympy.Rational(3 + 2 * place, 7) for place, name in enumerate(names)}
    one, two = (value.subs(point).evalf(30) for value in (found, wanted))
    if not (one.is_number and two.is_number and one.is_finite and two.is_finite) or one.is_zero or two.is_zero:
        return True
    return bool(abs(one - two) <= 1e-15 * abs(two))


def _is_decimal_of(decimal: Quantity, formula: str) -> bool:
    """Whether a number that is written with a point is an irrational one to as many digits as count."""
    value = _parsed(formula)
    if decimal.number is None or "." not in decimal.text or value is None:
        return False
    try:
        if not (value.is_number and value.is_real) or value.doit().is_Rational:
            return False
        return f"{float(decimal.number):.{DIGITS - 1}e}" == f"{float(value):.{DIGITS - 1}e}"
    except (AttributeError, TypeError, OverflowError):  # of sets and matrices; of numbers that no float can hold
        return False


@functools.lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """The formula in SymPy with its decimals as fractions; None where math-verify's parser does not read all of it."""
    text = PRIMES.sub(lambda primed: f"{primed[1]}_{{{'p' * len(primed[2])}}}", text)
    if MISREAD.search(text) or not is_balanced(text):
        return None
    try:
        found = latex.latex2sympy(
            latex.normalize_latex(text, LOOKS),
            is_real=True,
            convert_degrees=True,
            normalization_config=None,
            conversion_config=CASE,
        )
        exact: dict[Any, Any] = {value: sympy.Rational(str(value)) for value in found.atoms(sympy.Float)}
        return found.xreplace(exact | {sympy.Symbol("i", real=True): sympy.I})
    except MemoryError:
        raise
    except Exception:  # the parser's own, of many kinds
        return None
