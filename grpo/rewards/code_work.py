"""What a process of the code reward does with an item."""

from __future__ import annotations

import warnings


def is_program(code: str) -> bool:
    """Whether Python compiles it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # ValueError: a zero byte
        return False
    return True
