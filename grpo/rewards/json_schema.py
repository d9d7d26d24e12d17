"""JSON: 1 if the completion's JSON matches the schema of its row, else 0."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from grpo.errors import InputError
from grpo.rewards.blocks import last_block
from grpo.rewards.pool import Failed, shared_pool

log = logging.getLogger(__name__)

LONGEST = 100_000  # characters


def json_reward(
    *,
    completions: Sequence[str],
    schema: Sequence[Any],
    timeout_s: float = 5.0,
    memory_mb: int = 1024,
    workers: int | None = None,
    **_: Any,
) -> list[float | None]:
    """1.0 where a completion is JSON that matches its row's JSON `schema`, else 0.0 (extra `[json]`).

    The JSON is the last ```json block, else the last block without a language, else all of the completion; of its last
    <answer>, if it has one. It is read strictly: no key twice in an object, no NaN, no infinite number, at most 50
    levels and 100,000 characters.

    `schema` is an object or its JSON, of any draft ("$schema"; without it 2020-12). References lead to places in itself
    or to the drafts; no other is followed, and nothing is fetched. Its patterns are Python's.
    Judged in `workers` processes (by default one for each core) of at most `memory_mb` (MiB).
    None where that takes longer than `timeout_s` (seconds) or more memory; the reason is logged.

    Raises InputError for a schema that is none, and without jsonschema.
    """
    if importlib.util.find_spec("jsonschema") is None:
        raise InputError("reward json needs jsonschema: pip install 'grpo-kernels[json]'")
    schemas = [_schema(value, number) for number, value in enumerate(schema)]
    texts = [last_block(text, ("json",)) for text in completions]
    pool = shared_pool("grpo.rewards.json_work:matches", workers or os.cpu_count() or 1, memory_mb << 20)
    fitting = [number for number, text in enumerate(texts) if len(text) <= LONGEST]
    verdicts: list[Any] = [False] * len(texts)
    for number, verdict in zip(
        fitting, pool.map([(texts[number], schemas[number]) for number in fitting], timeout_s), strict=True
    ):
        if isinstance(verdict, str):
            raise InputError(f"reward json: the schema of sample {number} cannot be used: {verdict}")
        verdicts[number] = verdict
    reasons = Counter(verdict.reason for verdict in verdicts if isinstance(verdict, Failed))
    for reason, count in reasons.items():
        log.warning("reward json: no verdict on %d of %d completions: %s", count, len(completions), reason)
    return [None if isinstance(verdict, Failed) else float(verdict) for verdict in verdicts]


def _schema(value: Any, number: int) -> str:
    """The schema as JSON, checked against its draft."""
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"reward json: the schema of sample {number} is no JSON: {error}") from error
    fault = _fault(text)
    if fault:
        raise InputError(f"reward json: the schema of sample {number} is none: {fault}")
    return text


@functools.lru_cache(maxsize=1024)
def _fault(schema: str) -> str:
    """What is wrong with a schema; "" where nothing is."""
    from jsonschema import Draft202012Validator, SchemaError
    from jsonschema.validators import validator_for

    try:
        content = json.loads(schema)
        if not isinstance(content, dict):
            return f"it is a {type(content).__name__}, not an object"
        validator_for(content, default=Draft202012Validator).check_schema(content)
    except SchemaError as error:
        return error.message
    except (ValueError, RecursionError) as error:
        return f"it cannot be read: {error}"
    return ""
