"""Processes that call a function on items; one that hangs, dies or takes too much memory costs its item alone."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import queue
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

START_S = 60.0


@dataclass(frozen=True)
class Failed:
    """No answer: the item's function raised, took too long, or its process died."""

    reason: str


class WorkerError(Exception):
    """A process that does not start."""


class Pool:
    """`workers` processes that call `target` (see `grpo.rewards.load`), each with at most `memory_bytes` of data.

    They start when they are needed and stay until `close`. Methods may be called from several threads at once.
    """

    def __init__(self, target: str, workers: int, memory_bytes: int) -> None:
        self.workers = workers
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all = [_Worker(target, memory_bytes) for _ in range(workers)]
        for worker in self._all:
            self._idle.put(worker)

    def map(self, items: Sequence[tuple[Any, ...]], timeout_s: float) -> list[Any]:
        """What the function returns for each item, its arguments, or `Failed`; `timeout_s` (seconds) is for one item.

        Arguments are pickled, results go through JSON. Raises WorkerError where the function cannot be loaded.
        """
        if not items:
            return []

        def one(arguments: tuple[Any, ...]) -> Any:
            worker = self._idle.get()
            try:
                return worker.call(arguments, timeout_s)
            finally:
                self._idle.put(worker)

        with ThreadPoolExecutor(min(self.workers, len(items))) as threads:
            return list(threads.map(one, items))

    def close(self) -> None:
        """Kill the processes; the next `map` starts new ones."""
        for worker in self._all:
            worker.kill()


_shared: dict[tuple[str, int, int], Pool] = {}


def shared_pool(target: str, workers: int, memory_bytes: int) -> Pool:
    """The one pool of this process for these arguments."""
    return _shared.setdefault((target, workers, memory_bytes), Pool(target, workers, memory_bytes))


@atexit.register
def close_shared_pools() -> None:
    """End the processes of all shared pools."""
    for pool in _shared.values():
        pool.close()


class _Worker:
    def __init__(self, target: str, memory_bytes: int) -> None:
        self._command = [sys.executable, "-m", "grpo.rewards.worker", target, str(memory_bytes)]
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1  # closes with this process, which ends the other
        self._read = b""

    def call(self, arguments: tuple[Any, ...], timeout_s: float) -> Any:
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died: then no line comes
            self._process.stdin.write(pickle.dumps(arguments))
            self._process.stdin.flush()
        line = self._line(timeout_s)
        if line is None:
            died = self._process.poll() is not None
            self.kill()
            return Failed("its process died" if died else f"it took more than {timeout_s:g} s")
        answer = json.loads(line)
        if "error" in answer:
            if answer["error"].startswith("MemoryError"):
                self.kill()  # what it took may not come back
            return Failed(answer["error"])
        return answer["value"]

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(self._lifeline)
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()

    def _start(self) -> None:
        self.kill()
        self._read = b""
        its_end, self._lifeline = os.pipe()
        self._process = subprocess.Popen(
            [*self._command, str(its_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(its_end,),
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        os.close(its_end)
        line = self._line(START_S)
        answer = {"error": "it does not start"} if line is None else json.loads(line)
        if "error" in answer:
            self.kill()
            raise WorkerError(answer["error"])

    def _line(self, limit_s: float) -> bytes | None:
        """The next line; None where it does not come in time or the process has ended."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._read:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    return None
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    self._process.wait()
                    return None
                self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line
