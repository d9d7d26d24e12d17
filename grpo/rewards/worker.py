"""A process that calls one function on item after item: `python -m grpo.rewards.worker TARGET MEMORY_BYTES`.

It reads pickled tuples of arguments and answers each with a line of JSON: {"value": ...} or {"error": reason}. It
ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import threading
import time

from grpo.rewards.load import load_function


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the function prints is no answer
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

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


def end_with(parent: int) -> None:
    """Leave when the parent has, also out of a function that never returns."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    main()
