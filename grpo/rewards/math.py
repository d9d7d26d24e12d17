r"""Mathematics: 1 if the completion's final answer equals the data's, else 0; compared by math-verify and exact numbers."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from grpo.errors import InputError
from grpo.rewards.answer import last_tagged
from grpo.rewards.numeric import NUMBER
from grpo.rewards.pool import Failed, shared_pool

log = logging.getLogger(__name__)

BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
HASHES = re.compile(r"####[ \t]*([^\n]+)")
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
END = 1000  # characters at the end of a text without any mark in which its answer is looked for


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

    The final answer is the last <answer>...</answer>, else the last \boxed{...}, else what follows the last ####, else
    the last formula between dollar signs or, without one, the last number. `math_judge.same_answer` says what is equal.

    `answer` is LaTeX or plain text; a number as a number. It may itself be a solution that ends with \boxed{...} or ####.
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
        return last_box(tagged) or tagged.strip()
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    hashes = HASHES.findall(text)
    if hashes:
        return hashes[-1].strip()
    end = text[-END:]
    formulae = FORMULA.findall(end)
    if formulae:
        return next(part for part in formulae[-1] if part).strip()
    numbers = NUMBER.findall(end.replace("\N{MINUS SIGN}", "-"))
    return numbers[-1] if numbers else ""


def last_box(text: str) -> str | None:
    r"""What is in the last \boxed{...} whose braces close; None without one."""
    for start in reversed([found.end() for found in BOX.finditer(text)][-10:]):
        depth = 1
        for end in range(start, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                return text[start:end].strip()
    return None


def _gold(value: Any, number: int) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or not str(value).strip():
        raise InputError(f"reward math: the answer of sample {number} is {value!r}; it must be a number or text")
    text = str(value)
    return final_answer(text) if "\\boxed" in text or "####" in text else text
