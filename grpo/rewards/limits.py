"""Time limits for functions of the user's own.

One that was named by file or module runs in a process, which is killed. Any other callable, which no other process can
import, runs in a thread, and an exception is raised in it: that ends what Python executes, but not a call that stays
inside of C code.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from grpo.groups import Completion
from grpo.rewards.calls import OverTime, arguments, call
from grpo.rewards.pool import Failed, shared_pool
from grpo.rewards.reward import Reward

MEMORY_BYTES = 16 << 30
GRACE_S = 1.0


class Raised(Exception):
    """What a function raised in another process."""


def call_within(reward: Reward, completions: Sequence[Completion], limit_s: float) -> object:
    """What the reward's function returns, within `limit_s` seconds; raises OverTime, or what the function raises."""
    if reward.target is None:
        return _in_thread(reward, completions, limit_s)
    pool = shared_pool("grpo.rewards.own_work:judge", 1, MEMORY_BYTES)
    (result,) = pool.map([(reward.target, arguments(completions))], limit_s)
    if isinstance(result, Failed):
        raise OverTime(limit_s) if result.reason.startswith("it took") else Raised(result.reason)
    return result


def _in_thread(reward: Reward, completions: Sequence[Completion], limit_s: float) -> object:
    found: dict[str, Any] = {}

    def work() -> None:
        try:
            found["result"] = call(reward, completions, limit_s)
        except BaseException as error:
            found["error"] = error

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        thread.join(GRACE_S)
        raise OverTime(limit_s)
    if "error" in found:
        error = found["error"]
        raise error if isinstance(error, Exception) else Raised(f"{type(error).__name__}: {error}")
    return found["result"]
