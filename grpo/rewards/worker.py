"""A process that calls one function on item after item: `python -m grpo.rewards.worker TARGET MEMORY_BYTES LIFELINE`.

It reads pickled tuples of arguments and answers each with a line of JSON: {"value": ...} or {"error": reason}. It
ends with the process that started it, which holds the other end of the pipe LIFELINE (a file descriptor).
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import resource
import signal
import sys

from grpo.rewards.load import load_function


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the function prints is no answer
    end_with(int(sys.argv[3]))

    def say(answer: dict[str, object]) -> None:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()

    try:
        function = load_function(sys.argv[1])
    except Exception as error:
        return say({"error": f"{type(error).__name__}: {error}"})
    limit = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    say({"value": "ready"})
    while True:
        try:
            arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return None
        try:
            say({"value": function(*arguments)})
        except (Exception, SystemExit) as error:
            say({"error": f"{type(error).__name__}: {error}"})


def end_with(pipe: int) -> None:
    """Have the system end this process and what it starts when the pipe closes, also inside of C code, by SIGIO."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)


if __name__ == "__main__":
    main()
