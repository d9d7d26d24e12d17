"""Rewards by specification: NAME, NAME:option=value,option=value, FILE.py:function or package.module:function."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo.errors import InputError
from grpo.rewards.reward import RESERVED_COLUMNS, Reward, digest_of, own_reward


def find_rewards(specs: Sequence[str], known: Mapping[str, Reward]) -> list[Reward]:
    """The rewards that `specs` name; raises InputError for one that is not there, or an option that it does not have.

    A function of the user's own is run only where it is named here.
    """
    return [_find(spec, known) for spec in specs]


def _find(spec: str, known: Mapping[str, Reward]) -> Reward:
    name, colon, rest = spec.rpartition(":") if "=" not in spec else spec.partition(":")
    if not colon:
        name, rest = spec, ""
    if name in known:
        return _with_options(known[name], rest, spec) if rest else known[name]
    if not colon:
        raise InputError(
            f"--reward {spec}: there is no such reward; choose from {', '.join(sorted(known))}, or name a function of "
            "your own as FILE.py:function or package.module:function"
        )
    function = getattr(_module(name, spec), rest, None)
    if not callable(function):
        raise InputError(f"--reward {spec}: {name} has no function {rest!r}")
    return own_reward(function, rest)


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
    digest = digest_of(repr(sorted(options.items())))
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


def _module(name: str, spec: str) -> ModuleType:
    """The user's file or module; whatever it raises becomes one line."""
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = Path(name).resolve()
        if not path.is_file():
            raise InputError(f"--reward {spec}: there is no file {name}")
        found = importlib.util.spec_from_file_location(f"grpo_reward_{digest_of(str(path))}", path)
        assert found is not None and found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[found.name] = module
        found.loader.exec_module(module)
        return module
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"--reward {spec}: {name} cannot be loaded: {type(error).__name__}: {error}") from error
