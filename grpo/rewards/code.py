"""Code: 1 if the completion's code passes the tests of its row, else 0; or the share of the tests that it passes.

The code runs in a sandbox (`grpo.sandbox`), the tests in another, and only plain data passes between them. There is
the standard library and nothing else. What does not compile needs no sandbox to be wrong.
"""

from __future__ import annotations

import collections
import logging
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpo.errors import InputError
from grpo.rewards.blocks import last_block
from grpo.rewards.code_tests import Calls, Programs, parse_tests
from grpo.rewards.pool import Failed, shared_pool
from grpo.sandbox import Limits, SandboxError, encodable, judge, run_python

log = logging.getLogger(__name__)

PYTHON = ("python", "py", "python3")


def code_reward(
    *,
    completions: Sequence[str],
    tests: Sequence[Any],
    entry_point: Sequence[str | None] | None = None,
    test_setup_code: Sequence[str | None] | None = None,
    fraction: bool = False,
    timeout_s: float = 10.0,
    memory_mb: int = 512,
    workers: int | None = None,
    unsafe_sandbox: bool = False,
    **_: Any,
) -> list[float | None]:
    """1.0 where a completion's code passes all tests of its row, else 0.0; with `fraction`, the share that it passes.

    The code is the last ```python block of a completion, else its last block without a language, else all of it; of
    its last <answer>, if it has one.
    `parse_tests` says what `tests` may be, and what `entry_point` and `test_setup_code` are for. A program's output
    is compared by lines, without the spaces at their ends and without empty lines at its end, and its exit code must
    be 0. Expected JSON values: a tuple counts as a list, floats agree to 1e-9 of their size, true is not 1.

    `timeout_s` (seconds) is for all tests of a completion, or for one input of a program; `memory_mb` (MiB) for each
    process; `workers` sandboxes run at once, by default one for each core. `unsafe_sandbox` does without bubblewrap.

    None where the sandbox failed or where tests cannot be judged from outside the process of the code (they pass
    functions or objects to it, or import what is not there); the reason is logged.

    Raises InputError for tests that say nothing, and where there is no bubblewrap.
    """
    plans = [
        _plan(value, _at(entry_point, number), _at(test_setup_code, number), number)
        for number, value in enumerate(tests)
    ]
    limits = Limits(wall_s=timeout_s, cpu_s=math.ceil(timeout_s), memory_bytes=memory_mb << 20)
    reasons: collections.Counter[str] = collections.Counter()

    def one(code: str, compiles: bool | Failed, plan: Programs | Calls) -> float | None:
        if compiles is False:
            return 0.0
        try:
            passed, total = _passed(code, plan, limits, fraction, unsafe_sandbox)
        except (SandboxError, Unjudged) as error:
            reasons[str(error)] += 1
            return None
        return passed / total if fraction else float(passed == total)

    at_once = workers or os.cpu_count() or 1
    codes = [encodable(last_block(completion, PYTHON)) for completion in completions]
    compiler = shared_pool("grpo.rewards.code_work:is_program", at_once, memory_mb << 20)
    compiled = compiler.map([(code,) for code in codes], timeout_s)
    with ThreadPoolExecutor(at_once) as pool:
        rewards = list(pool.map(one, codes, compiled, plans))
    for reason, count in reasons.items():
        log.warning("reward code: no verdict on %d of %d completions: %s", count, len(completions), reason)
    return rewards


class Unjudged(Exception):
    """Tests that cannot be judged from outside the process of the code."""


def same_output(printed: str, expected: str) -> bool:
    """Whether the lines are the same but for spaces at their ends and empty lines at the end."""
    return _lines(printed) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _plan(value: Any, entry_point: str | None, setup: str | None, number: int) -> Programs | Calls:
    try:
        return parse_tests(value, entry_point, setup)
    except InputError as error:
        raise InputError(f"reward code: sample {number}: {error}") from error


def _at(column: Sequence[str | None] | None, number: int) -> str | None:
    return None if column is None else column[number]


def _passed(code: str, plan: Programs | Calls, limits: Limits, fraction: bool, unsafe: bool) -> tuple[int, int]:
    """How many tests passed, and of how many; without `fraction`, the first failure ends it."""
    if isinstance(plan, Calls):
        if not code.strip():
            return 0, 1
        verdict = judge(code, plan.names, plan.units, limits, stop_early=not fraction, unsafe=unsafe)
        if verdict.unsupported:
            raise Unjudged(verdict.unsupported)
        return verdict.passed, verdict.total
    passed = 0
    for stdin, stdout in plan.pairs:
        outcome = run_python(code, stdin, limits, unsafe=unsafe)
        right = outcome.status == "ok" and same_output(outcome.stdout, stdout)
        passed += right
        if not right and not fraction:
            break
    return passed, len(plan.pairs)
