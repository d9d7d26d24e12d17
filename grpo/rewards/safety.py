"""Safety: minus what a policy file asks for each of its patterns that a completion matches."""

from __future__ import annotations

import functools
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpo.errors import InputError
from grpo.rewards.pool import Failed, shared_pool

log = logging.getLogger(__name__)

KEYS = {"name", "pattern", "score"}


@dataclass(frozen=True)
class Pattern:
    name: str
    pattern: str
    score: float


def safety_reward(
    *,
    completions: Sequence[str],
    policy: str = "",
    timeout_s: float = 5.0,
    memory_mb: int = 512,
    workers: int | None = None,
    **_: Any,
) -> list[dict[str, float | None]]:
    """The sum of the scores of the patterns that a completion matches anywhere, 0.0 without one; parts by their names.

    `policy` is a YAML file: a list of {name, pattern, score}, a pattern a regular expression of Python's `re` (with
    (?i) in front, case does not count), a score 0 or negative.
    Patterns are matched in `workers` processes (by default one for each core) of at most `memory_mb` (MiB).
    None where those of a completion take longer than `timeout_s` (seconds) or more memory; the reason is logged.

    Raises InputError for a policy that is not there or says something else.
    """
    patterns = read_policy(policy)
    pool = shared_pool("grpo.rewards.safety_work:found", workers or os.cpu_count() or 1, memory_mb << 20)
    wanted = tuple(pattern.pattern for pattern in patterns)
    results = pool.map([(text, wanted) for text in completions], timeout_s)
    reasons = Counter(result.reason for result in results if isinstance(result, Failed))
    for reason, count in reasons.items():
        log.warning("reward safety: no verdict on %d of %d completions: %s", count, len(completions), reason)
    return [_verdict(patterns, result) for result in results]


def _verdict(patterns: Sequence[Pattern], result: list[bool] | Failed) -> dict[str, float | None]:
    if isinstance(result, Failed):
        return {"total": None, **{pattern.name: None for pattern in patterns}}
    scores = {pattern.name: pattern.score if found else 0.0 for pattern, found in zip(patterns, result, strict=True)}
    return {"total": math.fsum(scores.values()), **scores}


@functools.cache
def read_policy(path: str) -> tuple[Pattern, ...]:
    """The patterns of a file, which is read once. Raises InputError, one sentence."""
    if not path:
        raise InputError("reward safety: it needs its patterns: --reward safety:policy=FILE.yaml")
    where = f"reward safety: policy {path!r}"
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{where}: the file cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: it is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, list) or not content:
        raise InputError(f"{where}: it must be a list of {{name: ..., pattern: ..., score: ...}}")
    patterns = tuple(_pattern(where, entry) for entry in content)
    for name, count in Counter(pattern.name for pattern in patterns).items():
        if count > 1:
            raise InputError(f"{where}: the name {name!r} comes {count} times")
    return patterns


def _pattern(where: str, entry: Any) -> Pattern:
    if not isinstance(entry, dict) or set(entry) != KEYS:
        raise InputError(f"{where}: {entry!r} must have a name, a pattern and a score, and nothing else")
    name, pattern, score = str(entry["name"]), entry["pattern"], entry["score"]
    if name == "total" or "/" in name:
        raise InputError(f"{where}: a pattern cannot be called {name!r}")
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not -math.inf < score <= 0:
        raise InputError(f"{where}: the score of {name} is {score!r}; it must be 0 or a negative number")
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise InputError(f"{where}: the pattern of {name} is {pattern!r}, no regular expression: {error}") from error
    return Pattern(name, pattern, float(score))
