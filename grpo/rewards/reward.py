"""A reward: a function that judges completions, its name, and what tells one way of judging from another."""

from __future__ import annotations

import hashlib
import inspect
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo.rewards.adapters import RESERVED as RESERVED_COLUMNS
from grpo.rewards.adapters import adapted

RewardFunction = Callable[..., Any]


@dataclass(frozen=True)
class Reward:
    """A reward function under its name. `version` changes when a completion may be judged differently.

    `digest` stands for the options of a built-in function, or for the source of one of the user's own.
    `beside_sampling`: it judges each completion by itself, and may do so in another thread while others are sampled.
    `target` is where another process finds the user's function, FILE.py:function or package.module:function.
    """

    name: str
    version: int
    function: RewardFunction
    digest: str = ""
    beside_sampling: bool = False
    target: str | None = None

    @property
    def rule(self) -> str:
        """The name with everything that a verdict depends on: "numeric@1", "code@1:1f0c3a9b"."""
        return f"{self.name}@{self.version}" + (f":{self.digest}" if self.digest else "")

    @property
    def columns(self) -> list[str]:
        """The data columns that the function cannot do without."""
        parameters = inspect.signature(self.function).parameters.values()
        kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [
            p.name for p in parameters
            if p.kind in kinds and p.default is p.empty and p.name not in RESERVED_COLUMNS
        ]  # fmt: skip


def own_reward(function: RewardFunction, name: str | None = None, target: str | None = None) -> Reward:
    """A user's function in any of the forms of `grpo.rewards.adapters`, its rule the digest of its source where that
    can be read."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError, SyntaxError, tokenize.TokenError):
        source = ""
    called = name or getattr(function, "__name__", None) or type(function).__name__
    return Reward(called, 1, adapted(function), digest_of(source) if source else "", target=target)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
