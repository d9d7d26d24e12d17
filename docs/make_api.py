"""Writes docs/api.md from the docstrings and options of the public names.

``python docs/make_api.py``
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("api.md")
HEAD = """# API

Made by `python docs/make_api.py` from the docstrings; a test keeps it up to date. Shapes: B sequences, T completion
tokens, V words of the vocabulary, D the hidden size, N rows of packed sequences.
"""
INTEGRATIONS = ("grpo_kernels.integrations.trl", "grpo_kernels.integrations.verl")
OPTIONS = {"grpo train": ("grpo.config", "TrainConfig"), "grpo sft": ("grpo.sft_config", "SFTRunConfig")}


def page() -> str:
    parts = [HEAD]
    for module, names in modules().items():
        parts.append(f"## {module}\n")
        for name in names:
            parts += entry(getattr(importlib.import_module(module), name), name)
    for command, (module, name) in OPTIONS.items():
        parts.append(f"## Options of `{command}`\n")
        parts += tables(getattr(importlib.import_module(module), name))
    return "\n".join(parts)


def modules() -> dict[str, tuple[str, ...]]:
    """The public names by module; those of an integration are what it defines."""
    names = {name: tuple(importlib.import_module(name).__all__) for name in ("grpo_kernels", "grpo")}
    for name in INTEGRATIONS:
        members = vars(importlib.import_module(name)).items()
        names[name] = tuple(
            key for key, value in members if getattr(value, "__module__", None) == name and not key.startswith("_")
        )
    return names


def entry(value: Any, name: str) -> Iterator[str]:
    """A heading, the signature and the docstring; of a class its public methods and properties, too."""
    yield f"### {name}\n"
    yield from code(declaration(value, name))
    yield from code(inspect.getdoc(value) or "", "text")
    for method, function in methods(value):
        yield from member(f"{name}.{method}", function)


def member(name: str, function: Callable[..., Any] | property) -> Iterator[str]:
    """What a class can do: a line where one says it."""
    if isinstance(function, property):
        shown = f"{name}: {annotation(inspect.signature(function.fget).return_annotation)}"  # type: ignore[arg-type]
    else:
        shown = signature(function, name)
    text = inspect.getdoc(function) or ""
    if "\n" in shown or "\n\n" in text:
        yield from code(shown)
        yield from code(text, "text")
    else:
        yield f"- `{shown}`: {' '.join(text.split())}\n"


def declaration(value: Any, name: str) -> str:
    """As in the source: of a class that adds no constructor its base, of one with a table of options its name."""
    if not inspect.isclass(value):
        return f"def {signature(value, name)}"
    if dataclasses.is_dataclass(value):
        has_table = any("help" in field.metadata for field in dataclasses.fields(value))
        return f"class {name}(...)" if has_table else f"class {signature(value, name)}".removesuffix(" -> None")
    if "__init__" in vars(value):
        return f"class {signature(value, name)}".removesuffix(" -> None")
    base = value.__bases__[0].__name__
    return f"class {name}" + ("" if base == "object" else f"({base})")


def methods(value: Any) -> Iterator[tuple[str, Callable[..., Any] | property]]:
    """Public methods and properties that a class defines itself and says something about."""
    if not inspect.isclass(value) or issubclass(value, tuple):
        return
    for name, member in vars(value).items():
        member = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        is_shown = isinstance(member, property) or inspect.isfunction(member)
        if is_shown and not name.startswith("_") and inspect.getdoc(member):
            yield name, member


def signature(value: Any, name: str) -> str:
    """``name(a: int, b: str = 'x') -> int``, a parameter a line where it is long."""
    found = inspect.signature(value)
    parameters, seen_star = [], False
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not seen_star:
            parameters.append("*")
        seen_star = seen_star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parameters.append(shown_parameter(parameter))
    returns = "" if found.return_annotation is found.empty else f" -> {annotation(found.return_annotation)}"
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 100:
        return line
    return "\n".join([f"{name}(", *(f"    {parameter}," for parameter in parameters), f"){returns}"])


def shown_parameter(parameter: inspect.Parameter) -> str:
    stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
    stars = "**" if parameter.kind is parameter.VAR_KEYWORD else stars
    kind = "" if parameter.annotation is parameter.empty else f": {annotation(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return f"{stars}{parameter.name}{kind}"
    default = parameter.default
    written = f"{type(default).__name__}()" if dataclasses.is_dataclass(default) else repr(default)
    written = "..." if "<" in written else written  # a factory or another object that has no source form
    return f"{parameter.name}{kind} = {written}" if kind else f"{parameter.name}={written}"


def annotation(hint: Any) -> str:
    return (hint if isinstance(hint, str) else inspect.formatannotation(hint)).replace("typing.", "")


def tables(options: type) -> Iterator[str]:
    """A table of the options of each group, with types and defaults."""
    hints = typing.get_type_hints(options)
    groups: dict[str, list[dataclasses.Field[Any]]] = {}
    for field in dataclasses.fields(options):
        groups.setdefault(field.metadata["group"], []).append(field)
    for group, fields in groups.items():
        yield f"### {group}\n"
        yield "| option | type | default | what it does |\n|---|---|---|---|"
        for field in fields:
            choices = field.metadata["choices"]
            kind = " \\| ".join(choices) if choices else inspect.formatannotation(hints[field.name]).replace("|", "\\|")
            yield f"| `{field.name}` | {kind} | {default(field.default)} | {cell(field.metadata['help'])} |"
        yield ""


def default(value: Any) -> str:
    if value is None or value == ():
        return "-"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def code(text: str, language: str = "python") -> Iterator[str]:
    if text:
        yield f"```{language}\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
