"""Learning rate schedules: a linear warm-up, then a decay to a share of the peak."""

from __future__ import annotations

import math

SCHEDULES = ("linear", "cosine", "constant")


def learning_rate_factor(kind: str, step: int, warmup_steps: int, max_steps: int, min_rate: float) -> float:
    """Share of the peak at `step`, from 0 to `max_steps - 1`.

    It rises linearly over the warm-up, is 1 right after it, and falls to `min_rate` at the last step: along a line
    ("linear"), along half a cosine ("cosine"), or not at all ("constant").
    """
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = min((step - warmup_steps) / max(max_steps - 1 - warmup_steps, 1), 1.0)
    fallen = {"linear": progress, "cosine": (1 - math.cos(math.pi * progress)) / 2, "constant": 0.0}[kind]
    return 1 - (1 - min_rate) * fallen
