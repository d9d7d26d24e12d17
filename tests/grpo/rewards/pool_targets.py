"""What the processes of test_pool.py run."""

import itertools
import os
import signal
import sys
import time


def work(kind: str, value: float = 0.0):
    if kind == "loop":
        while True:
            pass
    if kind == "loop in C":
        sum(itertools.repeat(0))
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "eat":
        eaten = []
        while True:
            eaten.append(bytearray(10_000_000))
    if kind == "raise":
        raise KeyError(f"no {value}")
    if kind == "exit":
        sys.exit(3)
    if kind == "print":
        print('{"value": "forged"}', flush=True)
    if kind == "sleep":
        time.sleep(value)
    if kind == "process":
        return os.getpid()
    return value * 2


def grandchild(path: str) -> None:
    """Leaves a process behind and hangs."""
    import subprocess

    child = subprocess.Popen(["sleep", "60"])
    with open(path, "w") as file:
        file.write(str(child.pid))
    time.sleep(60)
