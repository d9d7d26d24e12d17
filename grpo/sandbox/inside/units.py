"""The side of the tests: runs them with functions that pass every call on to the program.

What the program returns arrives here as plain data, so its `==` is Python's own. One JSON line on stdout for each
counted unit says whether it passed.
"""

import builtins
import json
import math
import os

from .plain import NotPlain, decode, dumps, encode

LONGEST_REPLY = 16 << 20
# Raised inside an iterator of the tests, these would end it instead of the test.
ENDS_ITERATION = (StopIteration, StopAsyncIteration)


class Unsupported(BaseException):
    """The tests need a module that is not here, or pass the program something that cannot be passed on."""


class ProgramEnded(Exception):
    pass


class Program:
    """The program on the other side of two pipes."""

    def __init__(self, requests, replies):
        self.requests, self.replies = requests, replies

    def ask(self, request):
        try:
            self.requests.write(dumps(request))
            line = self.replies.readline(LONGEST_REPLY)
        except OSError as error:
            raise ProgramEnded("the program ended") from error
        if not line.endswith(b"\n"):
            raise ProgramEnded("the program ended" if len(line) < LONGEST_REPLY else "a result is too long")
        return json.loads(line)

    def function(self, name):
        def call(*arguments, **keywords):
            try:
                request = {
                    "call": name,
                    "arguments": [encode(item) for item in arguments],
                    "keywords": {key: encode(item) for key, item in keywords.items()},
                }
            except (NotPlain, RecursionError) as error:
                raise Unsupported(f"{name} is called with {error}") from error
            reply = self.ask(request)
            if "raised" in reply:
                raise exception(reply["raised"], str(reply["message"]))
            for argument, after in zip(arguments, reply.get("arguments", ()), strict=False):
                overwrite(argument, decode(after))
            return decode(reply["value"])

        call.__name__ = call.__qualname__ = name
        return call


def exception(names, message):
    """The nearest built-in exception of these class names, nearest first."""
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, ENDS_ITERATION):
            try:
                return kind(message)
            except TypeError:  # UnicodeDecodeError and its like want more than a message
                continue
    return RuntimeError(f"{names[0]}: {message}")


def overwrite(argument, after):
    """Give a mutable argument the content that the program left in its copy."""
    if type(argument) is not type(after):
        return
    if isinstance(argument, (list, bytearray)):
        argument[:] = after
    elif isinstance(argument, (dict, set)):
        argument.clear()
        argument.update(after)


def same(result, expected):
    """Whether a result is the expected JSON value: tuples count as lists; floats agree to 1e-9 of their size."""
    if isinstance(expected, bool) or expected is None or isinstance(result, bool):
        return type(result) is type(expected) and result == expected
    if (isinstance(result, float) and isinstance(expected, (int, float))) or isinstance(expected, float):
        return isinstance(result, (int, float)) and math.isclose(result, expected, rel_tol=1e-9)
    if isinstance(expected, list):
        return isinstance(result, (list, tuple)) and len(result) == len(expected) and all(map(same, result, expected))
    if isinstance(expected, dict):
        return (
            isinstance(result, dict)
            and result.keys() == expected.keys()
            and all(same(result[key], expected[key]) for key in expected)
        )
    return type(result) is type(expected) and result == expected


def run(job):
    verdicts = os.fdopen(os.dup(1), "wb", buffering=0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    program = Program(os.fdopen(job["requests"], "wb", buffering=0), os.fdopen(job["replies"], "rb"))
    names = {"__name__": "tests", "_same": same, "_json": json.loads}
    try:
        for name, found in zip(job["names"], program.ask({"names": job["names"]}), strict=True):
            if "function" in found:
                names[name] = program.function(name)
            elif "value" in found:
                names[name] = decode(found["value"])
        first_reason = True
        for source, counted in job["units"]:
            reason = failure(source, names)
            if counted or reason:
                line = {"counted": counted, "passed": not reason, "reason": reason if first_reason else ""}
                verdicts.write(dumps(line))
                first_reason = first_reason and not reason
            if reason and (job["stop_early"] or not counted):
                return
    except Unsupported as error:
        verdicts.write(dumps({"unsupported": str(error)}))
    except Exception as error:
        verdicts.write(dumps({"counted": False, "passed": False, "reason": described(error)}))


def failure(source, names):
    """Why a piece of test code did not run to its end, or nothing."""
    try:
        exec(compile(source, "tests.py", "exec"), names)
    except Unsupported:
        raise
    except ImportError as error:
        if source.startswith(("import ", "from ")):
            raise Unsupported(str(error)) from error
        return described(error)
    except BaseException as error:
        return described(error)
    return ""


def described(error):
    return f"{type(error).__name__}: {error}"[:1000]
