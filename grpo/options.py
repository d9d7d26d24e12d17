"""Options of a command: the fields of a dataclass, as command-line arguments and as the keys of a YAML file."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from grpo.errors import InputError


def option(default: Any, group: str, help: str, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field with what the command line needs to know about it."""
    return dataclasses.field(default=default, metadata={"group": group, "help": help, "choices": choices})


class Parser(argparse.ArgumentParser):
    """Reports a wrong option in one line, with the nearest right ones."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)} ({self.prog} --help lists the options)\n")

    def parse_args(self, args=None, namespace=None):
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = getattr(arguments, "parser", self)
            word = unknown[0].partition("=")[0]
            command.error(f"unrecognized argument {word}{nearest(word, command.option_strings())}")
        return arguments

    def option_strings(self) -> list[str]:
        return [string for action in self._actions for string in action.option_strings]


def nearest(word: str, known: Sequence[str]) -> str:
    """`: did you mean ...?`, or nothing where nothing is near."""
    found = difflib.get_close_matches(word, known, n=2, cutoff=0.7)
    return f": did you mean {' or '.join(found)}?" if found else ""


def add_options(parser: argparse.ArgumentParser, cls: type, notes: Mapping[str, str] | None = None) -> None:
    """An option `--like-this` for every field of the dataclass `cls` made by `option`, under the groups of its fields.

    An option that is not given is not in the parsed arguments: defaults are in one place, the dataclass. `notes` are
    added to the help of the fields that they name.
    """
    types_of = typing.get_type_hints(cls)
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        name = field.metadata["group"]
        group = groups.get(name) or groups.setdefault(name, parser.add_argument_group(name))
        note = (notes or {}).get(field.name)
        group.add_argument("--" + field.name.replace("_", "-"), **_argument(field, types_of[field.name], note))


def given_options(arguments: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of `cls` that were given on the command line, with their values."""
    names = {field.name for field in dataclasses.fields(cls)}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in vars(arguments).items()
        if name in names
    }


def read_options(path: str | Path, cls: type) -> dict[str, Any]:
    """Fields of `cls` from a YAML file of `name: value` lines; names may be written with dashes.

    Raises InputError for a file that cannot be read, an unknown name and a value of another type.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path} is not YAML: {one_line(str(error))}") from error
    if not isinstance(content, dict):
        raise InputError(f"--config {path} must hold `name: value` lines, not a {type(content).__name__}")
    return typed_options({str(name).replace("-", "_"): value for name, value in content.items()}, cls, str(path))


def typed_options(values: Mapping[str, Any], cls: type, source: str) -> dict[str, Any]:
    """`values` in the types of the fields of `cls`; `source` names them in errors."""
    types_of = typing.get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    for name in values:
        if name not in names:
            raise InputError(f"{source}: there is no option {name!r}{nearest(name, names)}")
    return {name: _typed(value, types_of[name], f"{source}: {name}") for name, value in values.items()}


def one_line(text: str) -> str:
    return " ".join(text.split())


def _argument(field: dataclasses.Field[Any], hint: Any, note: str | None) -> dict[str, Any]:
    """How argparse reads a field."""
    hint = _without_none(hint)
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field, note)}
    if hint is bool:
        return options | {"action": "store_true" if field.default is False else argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is tuple:
        options |= {"nargs": "+", "action": "extend"}
        hint = typing.get_args(hint)[0]
    if field.metadata["choices"]:
        return options | {"choices": field.metadata["choices"]}
    return options | {"type": hint, "metavar": {str: "TEXT", int: "N", float: "X"}[hint]}


def _help(field: dataclasses.Field[Any], note: str | None) -> str:
    shown = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    notes = [] if shown is None or shown is False or shown == "" else [f"default: {shown}"]
    notes += [note] if note else []
    return field.metadata["help"].replace("%", "%%") + (f" ({'; '.join(notes)})" if notes else "")


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) is types.UnionType:
        return next(t for t in typing.get_args(hint) if t is not type(None))
    return hint


def _typed(value: Any, hint: Any, where: str) -> Any:
    optional = typing.get_origin(hint) is types.UnionType
    if value is None and optional:
        return None
    hint = _without_none(hint)
    if typing.get_origin(hint) is tuple:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_typed(item, typing.get_args(hint)[0], where) for item in items)
    if hint is float and not isinstance(value, bool):
        # YAML reads 1e-4 as text: it wants 1.0e-4.
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    elif type(value) is hint or (hint is str and isinstance(value, (int, float)) and not isinstance(value, bool)):
        return hint(value)
    kinds = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    raise InputError(f"{where} is {value!r}; it must be {kinds[hint]}{' or null' if optional else ''}")
