"""What a group is a group of, as a short digest; and what changed between two sets of rules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

DIGITS = 16


def fingerprint(*parts: Any) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of `parts` as JSON, with sorted keys.

    The same on every machine for what JSON has; other values count by their text.
    """
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def changed_rules(old: Sequence[str], new: Sequence[str]) -> str | None:
    """What differs between two reward specifications, in words; None where nothing does.

    A rule is `NAME@VERSION`, with `:HASH` of its options and source where it has one. Order counts: the first reward
    decides the held-out accuracy, and weights are given in order.
    """
    if list(old) == list(new):
        return None
    before, now = ({rule.rpartition("@")[0]: rule for rule in rules} for rules in (old, new))
    differences = [
        *(f"reward {name} was {before[name]} and is {now[name]}" for name in before
          if name in now and before[name] != now[name]),
        *(f"reward {before[name]} is gone" for name in before if name not in now),
        *(f"reward {now[name]} is new" for name in now if name not in before),
    ]  # fmt: skip
    return "; ".join(differences) or f"the rewards were in the order {', '.join(old)} and are in {', '.join(new)}"
