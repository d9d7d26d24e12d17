"""What a process of the safety reward does with an item."""

from __future__ import annotations

import re
from collections.abc import Sequence


def found(text: str, patterns: Sequence[str]) -> list[bool]:
    """Whether each pattern matches anywhere in a text."""
    return [re.search(pattern, text) is not None for pattern in patterns]
