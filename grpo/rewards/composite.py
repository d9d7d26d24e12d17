"""A reward that is made of parts: other rewards, with weights, and gates that decide where a part counts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from grpo.errors import InputError
from grpo.rewards.calls import call_function
from grpo.rewards.reward import Reward, digest_of

ANSWERED = "answered"
KEYS = ("reward", "weight", "if")


@dataclass(frozen=True)
class Part:
    """One reward of several. `gate`: it counts where the part of that name counts 1 or more, or where the completion
    has an answer at all ("answered"); elsewhere it is 0."""

    name: str
    reward: Reward
    weight: float
    gate: str | None


class Composite:
    """The weighted sum of parts, as a reward function that gives {"total": ..., PART: ..., ...} for each completion.

    The first part is correctness: where it gives no verdict there is none at all, and it alone says what counts as
    right in accuracies. Another part without a verdict adds nothing.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.by_gates = after_their_gates(parts)
        columns = dict.fromkeys(name for part in parts for name in part.reward.columns)
        keyword = inspect.Parameter.KEYWORD_ONLY
        named = [inspect.Parameter(name, keyword) for name in ("completions", *columns)]
        self.__signature__ = inspect.Signature([*named, inspect.Parameter("_", inspect.Parameter.VAR_KEYWORD)])

    def __call__(self, *, completions: Sequence[str], **given: Any) -> list[dict[str, float | None]]:
        found = {part.name: self.values(part, {"completions": completions, **given}) for part in self.parts}
        return [
            self.verdict({name: values[n] for name, values in found.items()}, text)
            for n, text in enumerate(completions)
        ]

    def values(self, part: Part, given: Mapping[str, Any]) -> list[float | None]:
        """The part's reward for every completion; of one that is made of parts itself, its total."""
        values = call_function(part.reward.function, given)
        if not isinstance(values, list) or len(values) != len(given["completions"]):
            raise ValueError(f"part {part.name} did not return a list of one verdict a completion")
        return [value["total"] if isinstance(value, Mapping) else value for value in values]

    def verdict(self, values: Mapping[str, float | None], text: str) -> dict[str, float | None]:
        counted: dict[str, float | None] = {part.name: None for part in self.parts}
        for part in self.by_gates:
            counted[part.name] = values[part.name] if is_open(part.gate, counted, text) else 0.0
        weighted = [part.weight * value for part in self.parts if (value := counted[part.name]) is not None]
        return {**counted, "total": None if counted[self.parts[0].name] is None else math.fsum(weighted)}


def after_their_gates(parts: Sequence[Part]) -> list[Part]:
    """The parts in an order in which each comes after the one that is its gate; raises CycleError without one."""
    named = {part.name: part for part in parts}
    gates = {part.name: [part.gate] if part.gate in named else [] for part in parts}
    return [named[name] for name in TopologicalSorter(gates).static_order()]


def is_open(gate: str | None, counted: Mapping[str, float | None], text: str) -> bool:
    if gate is None:
        return True
    if gate == ANSWERED:
        return is_answered(text)
    value = counted[gate]
    return value is not None and value >= 1


def is_answered(text: str) -> bool:
    """Whether anything stands in the last <answer>...</answer>, or, without one, after the last </think>."""
    _, tag, answer = text.rpartition("<answer>")
    if tag:
        return bool(answer.partition("</answer>")[0].strip())
    return bool(text.rpartition("</think>")[2].strip())


def read_composite(path: str, find: Callable[[str], Reward]) -> Reward:
    """The reward of a YAML file: each part's name, `reward` (as --reward takes it), `weight` and, if wanted, `if`.

    Raises InputError, one sentence, for what the file does not say or says wrongly.
    """
    where = f"--reward composite:{path}"
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{where}: the file cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: it is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not content:
        raise InputError(f"{where}: it must hold parts as `name: {{reward: ..., weight: ...}}`")
    names = [str(name) for name in content]
    parts = [_part(where, str(name), part, names, find) for name, part in content.items()]
    if parts[0].gate not in (None, ANSWERED):
        raise InputError(f"{where}: {parts[0].name} comes first and is correctness: its gate can only be {ANSWERED!r}")
    try:
        composite = Composite(parts)
    except CycleError as error:
        raise InputError(f"{where}: its gates go in a circle: {', '.join(error.args[1])}") from error
    digest = digest_of(repr([(part.name, part.reward.rule, part.weight, part.gate) for part in parts]))
    beside_sampling = all(part.reward.beside_sampling for part in parts)
    return Reward("composite", 1, composite, digest, beside_sampling)


def _part(where: str, name: str, part: Any, names: Sequence[str], find: Callable[[str], Reward]) -> Part:
    if name in ("total", ANSWERED) or "/" in name:
        raise InputError(f"{where}: a part cannot be called {name!r}")
    if not isinstance(part, dict) or set(part) - set(KEYS) or not isinstance(part.get("reward"), str):
        raise InputError(f"{where}: {name} is {part!r}; it must have a `reward` (text), a `weight` and perhaps an `if`")
    weight = part.get("weight")
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise InputError(f"{where}: the weight of {name} is {weight!r}; it must be a finite number")
    gate = part.get("if")
    if gate is not None and (gate == name or gate not in (*names, ANSWERED)):
        others = [other for other in names if other != name]
        raise InputError(f"{where}: {name} has the gate {gate!r}; it must be {', '.join([ANSWERED, *others])}")
    try:
        reward = find(part["reward"])
    except InputError as error:
        raise InputError(f"{where}: {name}: {error}") from error
    return Part(name, reward, float(weight), gate)
