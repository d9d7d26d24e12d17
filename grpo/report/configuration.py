"""The options of runs: what was changed, and in what they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo.config import TrainConfig
from grpo.console import printable

FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}


class Setting(NamedTuple):
    """An option with its values, one a run, as they are shown; None where a run does not have it."""

    name: str
    values: tuple[str | None, ...]
    default: str
    help: str

    @property
    def is_changed(self) -> bool:
        return any(value != self.default for value in self._known)

    @property
    def differs(self) -> bool:
        return len(set(self._known)) > 1

    @property
    def _known(self) -> list[str]:
        return [value for value in self.values if value is not None]


def settings(configs: Sequence[Mapping[str, Any]]) -> list[Setting]:
    """Every option that one of the runs has, in the order of the command's help, then those that it does not know."""
    names = [name for name in FIELDS if any(name in config for config in configs)]
    names += [name for name in dict.fromkeys(name for config in configs for name in config) if name not in FIELDS]
    return [
        Setting(
            printable(name),
            tuple(written(config[name]) if name in config else None for config in configs),
            written(FIELDS[name].default) if name in FIELDS else "",
            FIELDS[name].metadata["help"] if name in FIELDS else "not an option of this version",
        )
        for name in names
    ]


def written(value: Any) -> str:
    """As on the command line; "not set" for None."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return " ".join(map(written, value)) if value else "none"
    return f"{value:.10g}" if isinstance(value, float) else printable(str(value))


def without_sandbox(config: Mapping[str, Any]) -> list[str]:
    """The rewards that run the code of completions without a sandbox."""
    return [
        printable(spec)
        for spec in config.get("reward") or ()
        if "unsafe_sandbox=true" in spec.partition(":")[2].lower().split(",")
    ]
