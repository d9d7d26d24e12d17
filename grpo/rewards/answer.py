"""Where a completion marks its answer."""

from __future__ import annotations

OPENING, CLOSING = "<answer>", "</answer>"


def last_tagged(text: str) -> str | None:
    """What the last <answer>...</answer> holds, from the first opening tag that is still open; None without one."""
    found, start = None, text.find(OPENING)
    while start >= 0:
        end = text.find(CLOSING, start)
        if end < 0:
            break
        found = text[start + len(OPENING) : end]
        start = text.find(OPENING, end)
    return found
