"""A KL coefficient that steers the KL to the reference towards a target (Ziegler et al., arXiv 1909.08593)."""

from __future__ import annotations

import math

from grpo.errors import InputError

MAX_ERROR = 0.2


class AdaptiveKLController:
    """After each step, `beta *= 1 + gain * clip(kl / target - 1, -0.2, 0.2)`.

    `target` is in the unit of the KL that `update` is given: nats a token for the metric `kl`. `gain` is the
    paper's K_beta, 0.1 there: beta changes by at most 2% a step.
    """

    def __init__(self, beta: float, target: float, gain: float = 0.1) -> None:
        for name, value in (("beta", beta), ("kl_target", target), ("kl_gain", gain)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} is {value}; an adaptive KL coefficient needs a finite number above 0")
        if gain * MAX_ERROR >= 1:
            raise InputError(f"kl_gain is {gain}; it must be below {1 / MAX_ERROR:g}, or beta could reach 0")
        self.beta = beta
        self.target = target
        self.gain = gain

    def update(self, kl: float) -> float:
        """The coefficient for the next step, given the mean KL of this one; kept in `beta`."""
        if not math.isfinite(kl):
            raise FloatingPointError(f"the KL to the reference is {kl}: lower the learning rate")
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.beta *= 1 + self.gain * error
        return self.beta

    def state_dict(self) -> dict[str, float]:
        return {"beta": self.beta}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.beta = state["beta"]
