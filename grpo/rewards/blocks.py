"""Which part of a completion is its code."""

from __future__ import annotations

import re
from collections.abc import Sequence

FENCE = re.compile(r"[ \t]*```([^`]*)$")
LANGUAGE = re.compile(r"[ \t]*([\w+-]*)")


def last_block(text: str, languages: Sequence[str]) -> str:
    """The last fenced block in one of these languages, else the last one without a language, else all of `text`.

    If there is an <answer>...</answer>, only what the last one holds counts. A block that is not closed goes on to the
    end.
    """
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(end, 0))
    if start >= 0:
        text = text[start + len("<answer>") : end]
    blocks: list[tuple[str, list[str]]] = []
    is_open = False
    for line in text.splitlines(keepends=True):
        fence = FENCE.match(line.rstrip("\r\n"))
        if fence is None:
            if is_open:
                blocks[-1][1].append(line)
            continue
        named = LANGUAGE.match(fence[1])
        language = named[1].lower() if named else ""
        if is_open and not language:
            is_open = False
        else:
            blocks.append((language, []))
            is_open = True
    for wanted in (languages, ("",)):
        for language, lines in reversed(blocks):
            if language in wanted:
                return "".join(lines)
    return text
