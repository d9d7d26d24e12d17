"""A program, its input, and what it printed."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.sandbox.process import Limits, SandboxedProcess


@dataclass(frozen=True)
class Outcome:
    """What came of a program.

    `status` is "ok" (exit code 0), "failed" (another exit code; 128 + n for signal n), "timeout" (wall or CPU limit)
    or "output_limit"; with the last two there is no exit code.
    """

    status: str
    stdout: str
    stderr: str
    seconds: float
    exit_code: int | None


def run_python(code: str, stdin: str = "", limits: Limits | None = None, *, unsafe: bool = False) -> Outcome:
    """Run `code` as a program in a sandbox, with `stdin` as its input.

    It has the standard library alone, no network, no file of this machine but those of Python, and `limits`; it and
    all that it started are gone when this returns. With `unsafe` there are only the limits.

    Raises InputError where there is no bubblewrap, SandboxError where it does not work.
    """
    job = {"mode": "program", "code": encodable(code)}
    with SandboxedProcess(job, limits or Limits(), unsafe=unsafe, stdin=encodable(stdin).encode()) as process:
        end = process.finish()
    status = end.status if end.status != "finished" else "ok" if end.exit_code == 0 else "failed"
    stdout, stderr = (text.decode(errors="replace") for text in (end.stdout, end.stderr))
    return Outcome(status, stdout, stderr, end.seconds, end.exit_code)


def encodable(text: str) -> str:
    """`text` with halves of surrogate pairs, which UTF-8 cannot hold, replaced by question marks."""
    return text.encode(errors="replace").decode()
