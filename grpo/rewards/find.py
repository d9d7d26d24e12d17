"""Rewards by specification: NAME, NAME:option=value,option=value, composite:FILE.yaml, FILE.py:function or
package.module:function."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.errors import InputError
from grpo.rewards.composite import read_composite
from grpo.rewards.load import load_function
from grpo.rewards.reward import RESERVED_COLUMNS, Reward, RewardFunction, digest_of, own_reward


def find_rewards(specs: Sequence[str], known: Mapping[str, Reward]) -> list[Reward]:
    """The rewards that `specs` name; raises InputError for one that is not there, or an option that it does not have.

    A function of the user's own is run only where it is named here.
    """
    return [_find(spec, known) for spec in specs]


def _find(spec: str, known: Mapping[str, Reward], files: Sequence[Path] = ()) -> Reward:
    """`files`: the composites that the reward is a part of."""
    name, colon, rest = spec.rpartition(":") if "=" not in spec else spec.partition(":")
    if not colon:
        name, rest = spec, ""
    if name == "composite" and rest:
        file = Path(rest).resolve()
        if file in files:
            raise InputError(f"--reward {spec}: the file is a part of itself")
        return read_composite(rest, lambda part: _find(part, known, [*files, file]))
    if name in known:
        return _usable(_with_options(known[name], rest, spec) if rest else known[name])
    if not colon:
        raise InputError(
            f"--reward {spec}: there is no such reward; choose from {', '.join(sorted(known))}, or name a function of "
            "your own as FILE.py:function or package.module:function"
        )
    return own_reward(_own(spec, name), rest, spec)


def _usable(reward: Reward) -> Reward:
    """The built-in reward; raises what it says of its options, and of packages that it needs, to no completion."""
    names = ("prompts", "completions", "completion_ids", *reward.columns)
    reward.function(**{name: [] for name in names})
    return reward


def _with_options(reward: Reward, text: str, spec: str) -> Reward:
    """The reward with its options set; each is read in the type of its default."""
    optional = {
        p.name: p.default
        for p in inspect.signature(reward.function).parameters.values()
        if p.default is not p.empty and p.name not in RESERVED_COLUMNS
    }
    options: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name not in optional:
            allowed = ", ".join(optional) or "none"
            raise InputError(f"--reward {spec}: {part!r} is no option=value of {reward.name}; its options: {allowed}")
        options[name] = _typed(value, optional[name], spec, name)
    files = [Path(value).read_text() for value in options.values() if isinstance(value, str) and Path(value).is_file()]
    digest = digest_of(repr([*sorted(options.items()), *files]))
    return dataclasses.replace(reward, function=functools.partial(reward.function, **options), digest=digest)


def _typed(text: str, default: Any, spec: str, name: str) -> Any:
    kind = type(default)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return int(text) if default is None or kind is int else kind(text)
    except (KeyError, ValueError) as error:
        wanted = "true or false" if kind is bool else "a whole number" if kind is not float else "a number"
        raise InputError(f"--reward {spec}: {name} is {text!r}; it must be {wanted}") from error


def _own(spec: str, name: str) -> RewardFunction:
    """The user's function; whatever its file or module raises becomes one line."""
    try:
        return load_function(spec)
    except (FileNotFoundError, AttributeError) as error:
        raise InputError(f"--reward {spec}: {error}") from error
    except Exception as error:
        raise InputError(f"--reward {spec}: {name} cannot be loaded: {type(error).__name__}: {error}") from error
