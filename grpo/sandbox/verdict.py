"""Tests of a completion's functions, and the verdict that the completion has no hand in."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.sandbox.process import Limits, SandboxedProcess, SandboxError
from grpo.sandbox.program import encodable


@dataclass(frozen=True)
class Unit:
    """A piece of test code. It passes if it runs without an exception; `counted` units are the tests."""

    source: str
    counted: bool


@dataclass(frozen=True)
class Verdict:
    """How many of the counted units passed. `unsupported` says why nothing can be said, where that is so."""

    passed: int
    total: int
    reason: str = ""
    unsupported: str = ""


def judge(
    code: str,
    names: Sequence[str],
    units: Sequence[Unit],
    limits: Limits | None = None,
    *,
    stop_early: bool = True,
    unsafe: bool = False,
) -> Verdict:
    """Run `units`, one after the other in one namespace, against the functions and values `names` of `code`.

    `code` runs in one sandbox and the units in another. A call of one of the functions sends its arguments, as plain
    data, to the first, and its result, again as plain data, back: nothing that `code` does to its own process, to
    `==`, `assert`, exit codes or output, reaches the units, and no expected value reaches `code`. Numbers, text,
    bytes, lists, tuples, sets, dictionaries, ranges and iterators of them are plain data. A mutable argument takes the
    content that the function left in it. Any other result is an object that equals nothing.

    What remains to `code`: it sees the arguments, and may have their results by heart; and it decides what its own
    functions return, so a unit that compares two of them with each other can be satisfied without being right.

    With `stop_early` the first failure ends it, and `passed` is then less than the total, not exact. All of it has one
    wall limit; units that were not reached have failed.

    Raises InputError where there is no bubblewrap, SandboxError where it does not work.
    """
    limits = limits or Limits()
    total = sum(unit.counted for unit in units)
    with contextlib.ExitStack() as stack:
        requests_in, requests_out = os.pipe()
        replies_in, replies_out = os.pipe()
        ours = stack.enter_context(contextlib.ExitStack())
        for fd in (requests_in, requests_out, replies_in, replies_out):
            ours.callback(os.close, fd)
        serve = {"mode": "calls", "code": encodable(code), "requests": requests_in, "replies": replies_out}
        test = {
            "mode": "units", "names": list(names), "units": [[unit.source, unit.counted] for unit in units],
            "stop_early": stop_early, "requests": requests_out, "replies": replies_in,
        }  # fmt: skip
        program = stack.enter_context(
            SandboxedProcess(serve, limits, unsafe=unsafe, pass_fds=(requests_in, replies_out))
        )
        tests = stack.enter_context(SandboxedProcess(test, limits, unsafe=unsafe, pass_fds=(requests_out, replies_in)))
        ours.close()
        end = tests.finish()
        program.end()
        if not program.reached_program:
            raise SandboxError("the sandbox of the program did not start")
    lines = [json.loads(line) for line in end.stdout.splitlines() if line.endswith(b"}")]
    for line in lines:
        if "unsupported" in line:
            return Verdict(0, total, unsupported=line["unsupported"])
    passed = sum(line["counted"] and line["passed"] for line in lines)
    reasons = [line["reason"] for line in lines if not line["passed"]]
    if not reasons and passed < total:
        reasons = ["the time limit" if end.status == "timeout" else f"the tests ended early ({end.status})"]
    return Verdict(passed, total, reasons[0] if reasons else "")
