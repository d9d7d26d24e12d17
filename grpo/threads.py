"""How many threads torch may use."""

from __future__ import annotations

import math
import os
from pathlib import Path


def available_cores(cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that this process may run on: its affinity and its container's quota, whichever is less."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = cpu_max.read_text().split()
        return max(1, min(affinity, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no cgroup v2, or no quota ("max")
        return affinity


def wait_politely() -> None:
    """Let OpenMP's threads sleep while they wait; to be called before torch is imported.

    Spinning, their default, is a little faster on an idle machine and several times slower on one whose cores are
    taken. An OMP_WAIT_POLICY of the user's stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def set_threads() -> int:
    """Give torch the machine's cores, or OMP_NUM_THREADS of them if that is less; returns the number."""
    import torch

    wanted = os.environ.get("OMP_NUM_THREADS", "")
    threads = min(available_cores(), int(wanted)) if wanted.isdecimal() and int(wanted) else available_cores()
    torch.set_num_threads(threads)
    return threads
