"""What a process of the json reward does with an item."""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

# Readers and schemas of JSON recurse; a level takes several of Python's 1000 frames.
DEEPEST = 50


class NotStrict(ValueError):
    """JSON that readers do not agree on."""


def matches(text: str, schema: str) -> bool | str:
    """Whether `text` is JSON that matches a JSON schema, itself JSON; or why the schema cannot be used.

    Neither a key that comes twice in an object, nor NaN or an infinite number, nor more than 50 levels.
    """
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        return False
    from referencing.exceptions import Unresolvable

    try:
        return bool(_validator(schema).is_valid(value))
    except Unresolvable as error:
        return f"it refers to what is not in it: {error}"
    except RecursionError:
        return "it refers to itself without an end"


def strict_json(text: str) -> Any:
    """Raises ValueError or RecursionError for what `matches` does not accept."""
    value = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
    if any(depth > DEEPEST for depth in _depths(value)):
        raise NotStrict(f"more than {DEEPEST} levels")
    return value


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise NotStrict("a key comes twice")
    return found


def _no_number(name: str) -> Any:
    raise NotStrict(f"{name} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotStrict("a number is too large")
    return value


def _depths(value: Any) -> Iterator[int]:
    """How deep each list and object lies."""
    left = [(value, 1)]
    while left:
        one, depth = left.pop()
        if isinstance(one, (dict, list)):
            yield depth
            left += [(item, depth + 1) for item in (one.values() if isinstance(one, dict) else one)]


@functools.lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    """Knows the JSON schema drafts and the schema itself: any other reference is an error, never looked up."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    drafts = importlib.import_module("jsonschema_specifications").REGISTRY
    content = json.loads(schema)
    return validator_for(content, default=Draft202012Validator)(content, registry=drafts)
