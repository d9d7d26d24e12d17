"""SIGINT and SIGTERM end a run after the step that is under way; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(Exception):
    """A signal ended the run; what it had done is saved. `status` is the exit status that a shell expects."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.status = 128 + number


class Request:
    """Which signal asked for the end, if one did."""

    number: int | None = None


@contextmanager
def listening() -> Iterator[Request]:
    """Inside, the first signal is noted in the request. Off the main thread, where none arrives, nothing is done."""
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def note(number: int, frame: object) -> None:
        if request.number is not None:
            raise KeyboardInterrupt
        request.number = number

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
