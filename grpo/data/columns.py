"""From the columns that data has to a prompt and the columns that rewards read."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from grpo.errors import InputError
from grpo.groups import Prompt


def parse_renames(columns: Sequence[str]) -> dict[str, str]:
    """`("answer=solution",)` as {"answer": "solution"}: a reward's column, and the data's column that it is."""
    renames: dict[str, str] = {}
    for text in columns:
        name, equals, source = text.partition("=")
        if not (name and equals and source):
            raise InputError(f"--columns {text}: must be NAME=COLUMN, such as answer=solution")
        if name == "prompt":
            raise InputError(f"--columns {text}: the prompt's column is named by --prompt-column")
        if name in renames:
            raise InputError(f"--columns {text}: {name} is {renames[name]} already: give each name once")
        renames[name] = source
    return renames


def rename(row: Mapping[str, Any], renames: Mapping[str, str], where: str) -> dict[str, Any]:
    """The row with its columns under the names of `renames`; a column that is renamed loses its own name."""
    for name, source in renames.items():
        if source not in row:
            raise InputError(f"{where} has no column {source!r}, which --columns {name}={source} names; {_has(row)}")
    kept = {name: value for name, value in row.items() if name not in renames.values()}
    return kept | {name: row[source] for name, source in renames.items()}


def parse_template(template: str) -> list[tuple[str, str | None]]:
    """(text, column that follows it or None) pieces of a template such as "{question}\\nAnswer:"; {{ is a brace."""
    try:
        pieces = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"--prompt-template {template!r}: {error}; write {{{{ and }}}} for braces") from None
    for _, column, form, conversion in pieces:
        if column is not None and (not column or form or conversion or set(column) & set(".[")):
            raise InputError(f"--prompt-template {template!r}: each pair of braces must hold the name of a column")
    if not any(column for _, column, _, _ in pieces):
        raise InputError(f"--prompt-template {template!r}: must name a column, as in {{question}}")
    return [(text, column) for text, column, _, _ in pieces]


def fill(pieces: Sequence[tuple[str, str | None]], row: Mapping[str, Any], where: str) -> str:
    """The template with the values of the row."""
    for _, column in pieces:
        if column is not None and column not in row:
            raise InputError(f"{where} has no column {column!r}, which --prompt-template names; {_has(row)}")
    return "".join(text + ("" if column is None else str(row[column])) for text, column in pieces)


def as_messages(prompt: Prompt, system_prompt: str | None = None) -> Prompt:
    """A text prompt as the user's message; with a `system_prompt`, that is the only system message."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if system_prompt is None:
        return messages
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": system_prompt}, *others]


def _has(row: Mapping[str, Any]) -> str:
    return f"it has: {', '.join(map(str, row)) or 'nothing'}"
