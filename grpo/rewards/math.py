r"""Mathematics: 1 if the completion's final answer equals the data's, else 0; by exact numbers and math-verify."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Any

from grpo.errors import InputError
from grpo.rewards.answer import last_tagged
from grpo.rewards.math_read import ABBREVIATIONS
from grpo.rewards.numeric import NUMBER
from grpo.rewards.pool import Failed, shared_pool

log = logging.getLogger(__name__)

END = 1000  # characters at the end of a text without any mark in which its answer is looked for

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
# What may stand between boxes that give one answer together.
BETWEEN_BOXES = re.compile(r"[\s$,;.]{0,20}(?:or|and|\\text\{\s?(?:or|and)\s?\})?[\s$]{0,20}")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
STATED = re.compile(r"\banswers?\b[*_ ]{0,5}(?:is|are|:|=)[*_:\s]{0,5}", re.IGNORECASE)
SENTENCE_END = re.compile(r"\.(?:\s|$)|,? (?:because|since|as|so|which) ")
# A closing dollar sign follows no space and is followed by no digit: $5 and $6 are amounts.
FORMULA = r"\$\$[^$]+\$\$|(?<![\\$])\$(?![\s$])[^$]+(?<![\s\\])\$(?!\d)|\\\(.+?\\\)|\\\[.+?\\\]"
AMOUNT = rf"(?:{NUMBER.pattern})(?:\s?(?:\\?%|°|(?:{'|'.join(sorted(ABBREVIATIONS, key=len, reverse=True))})s?\b))?"
LISTED = r"(?:{0})(?:\s*(?:,|;|,?\s+(?:or|and)\b)\s*(?:{0}))*"
FORMULAE = re.compile(LISTED.format(f"{FORMULA}|{AMOUNT}"), re.ASCII | re.DOTALL | re.VERBOSE)
AMOUNTS = re.compile(LISTED.format(AMOUNT), re.ASCII | re.VERBOSE)


def math_reward(
    *,
    completions: Sequence[str],
    answer: Sequence[Any],
    timeout_s: float = 5.0,
    memory_mb: int = 1024,
    workers: int | None = None,
    **_: Any,
) -> list[float | None]:
    r"""1.0 where a completion's final answer equals `answer`, else 0.0 (extra `[math]`).

    The final answer is the last <answer>...</answer> (of it, the last \boxed{...}), else the last \boxed{...}, else the
    line after the last ####, else the rest of the sentence after the last "answer is" or "answer:", else the last
    formula between dollar signs, else the last number. What is listed together, as "3 or 4" or as two boxes with "and"
    between, is one answer of several parts. `math_judge.same_answer` says what is equal.

    `answer` is LaTeX, plain text or a number. It may itself be a solution that ends with \boxed{...} or ####.
    Answers are compared in `workers` processes (by default one for each core) of at most `memory_mb` (MiB).
    None where a comparison takes longer than `timeout_s` (seconds) or more memory; the reason is logged.

    Raises InputError for an answer that cannot be read, and without math-verify.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise InputError("reward math needs math-verify: pip install 'grpo-kernels[math]'")
    pool = shared_pool("grpo.rewards.math_work:compare", workers or os.cpu_count() or 1, memory_mb << 20)
    golds = [_gold(value, number) for number, value in enumerate(answer)]
    verdicts = pool.map([(final_answer(text), gold) for text, gold in zip(completions, golds, strict=True)], timeout_s)
    for number, verdict in enumerate(verdicts):
        if verdict == "unreadable":
            raise InputError(f"reward math: the answer of sample {number} is {answer[number]!r}, which cannot be read")
    reasons = Counter(verdict.reason for verdict in verdicts if isinstance(verdict, Failed))
    for reason, count in reasons.items():
        log.warning("reward math: no verdict on %d of %d completions: %s", count, len(completions), reason)
    return [None if isinstance(verdict, Failed) else float(verdict) for verdict in verdicts]


def final_answer(text: str) -> str:
    """The answer that a text ends with; "" where it has none."""
    tagged = last_tagged(text)
    if tagged is not None:
        boxed = last_box(tagged)
        return boxed if boxed is not None else stated(tagged) or tagged.strip()
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    end = text[-END:].replace("\N{MINUS SIGN}", "-")
    formulae = [found for found in FORMULAE.findall(end) if re.search(r"\$|\\[(\[]", found)]
    return after_hashes(text) or stated(end) or (formulae or AMOUNTS.findall(end) or [""])[-1].strip()


def last_box(text: str) -> str | None:
    r"""What is in the last \boxed{...}, with others that are listed right before it; None without one.

    A box whose braces do not close holds nothing.
    """
    boxes: list[str] = []
    before = len(text)
    for start, opened in reversed([found.span() for found in BOX.finditer(text)]):
        end = _closing_brace(text, opened)
        if boxes and not (end is not None and BETWEEN_BOXES.fullmatch(text, end + 1, before)):
            break
        boxes.append("" if end is None else text[opened:end].strip())
        before = start
        if end is None:
            break
    return ", ".join(dict.fromkeys(reversed(boxes))) if boxes else None


def after_hashes(text: str) -> str:
    """The line after the last ####; "" without one, or where it is a heading: words with more text below."""
    _, hashes, rest = text.rpartition("####")
    line, _, below = rest.partition("\n") if hashes else ("", "", "")
    line = line.strip()
    return "" if line[:1].isalpha() and below.strip() else line


def stated(text: str) -> str:
    """What follows the last "answer is" or "answer:", up to the end of its sentence; "" without one."""
    found = list(STATED.finditer(text, max(len(text) - END, 0)))
    line = text[found[-1].end() :].partition("\n")[0] if found else ""
    return SENTENCE_END.split(line)[0].strip("*_ ")


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for brace in BRACE.finditer(text, start):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return brace.start()
    return None


def _gold(value: Any, number: int) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
    if not is_number and not (isinstance(value, str) and value.strip()):
        raise InputError(f"reward math: the answer of sample {number} is {value!r}; it must be a number or text")
    text = str(value)
    return final_answer(text) if "\\boxed" in text or "####" in text else text
