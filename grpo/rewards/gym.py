"""Tasks of reasoning-gym (extra `[gym]`): its questions as data, its own scoring as the reward."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from grpo.console import printable
from grpo.errors import InputError
from grpo.rewards.math import final_answer
from grpo.rewards.pool import Failed, shared_pool

log = logging.getLogger(__name__)

SIZE = 500
# A task draws its question n from seed + n: rows of seeds that are near would be the same questions, shifted.
SEEDS_APART = 1_000_000


def gym_reward(
    *,
    completions: Sequence[str],
    gym_task: Sequence[str],
    gym_entry: Sequence[str],
    timeout_s: float = 10.0,
    memory_mb: int = 2048,
    workers: int | None = None,
    **_: Any,
) -> list[float | None]:
    """The task's own score of each completion's answer, from 0 to 1; rows come from `gym_rows` (--data gym:TASK).

    The answer is what the last <answer>...</answer>, \\boxed{...} or #### marks, else the whole completion. It is
    scored in `workers` processes (by default one for each core) of at most `memory_mb` (MiB), and never evaluated as
    code.
    None where that takes longer than `timeout_s` (seconds), more memory, or fails; the reason is logged.

    Raises InputError without reasoning-gym.
    """
    require_gym()
    pool = shared_pool("grpo.rewards.gym_work:score", workers or os.cpu_count() or 1, memory_mb << 20)
    answers = map(answer_of, completions)
    scores = pool.map(list(zip(gym_task, answers, gym_entry, strict=True)), timeout_s)
    reasons = Counter(score.reason for score in scores if isinstance(score, Failed))
    for reason, count in reasons.items():
        log.warning("reward gym: no verdict on %d of %d completions: %s", count, len(completions), printable(reason))
    return [None if isinstance(score, Failed) else score for score in scores]


def answer_of(text: str) -> str:
    marked = any(mark in text for mark in ("</answer>", "\\boxed", "\\fbox", "####"))
    return final_answer(text) if marked else text.strip()


def gym_rows(spec: str) -> list[dict[str, Any]]:
    """Rows of a task: TASK or TASK:size=N,seed=N and options of the task's own, such as TASK:max_terms=3.

    Each has a `prompt`, an `answer`, and what the scoring needs in `gym_task` and `gym_entry`. The seed decides the
    questions: give held-out ones another. Raises InputError for a task that is not there and options it refuses.
    """
    name, _, text = spec.partition(":")
    options: dict[str, Any] = {"size": SIZE, "seed": 0}
    for part in filter(None, text.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"gym:{spec}: {part!r} is no option=value")
        options[option] = _value(value)
    if not isinstance(options["seed"], int) or options["seed"] < 0:
        raise InputError(f"gym:{spec}: seed is {options['seed']!r}; it must be 0 or a positive whole number")
    own = {option: value for option, value in options.items() if option not in ("size", "seed")}
    options["seed"] *= SEEDS_APART
    require_gym()
    import reasoning_gym

    try:
        return [
            {
                "prompt": entry["question"],
                "answer": str(entry["answer"]),
                "gym_task": name,
                "gym_entry": repr({"options": own, "entry": _literal(entry)}),
            }
            for entry in reasoning_gym.create_dataset(name, **options)
        ]
    except (ValueError, TypeError, AssertionError) as error:
        raise InputError(f"gym:{spec}: reasoning-gym refuses this: {error}") from error


def require_gym() -> None:
    """Raise InputError without reasoning-gym."""
    if importlib.util.find_spec("reasoning_gym") is None:
        raise InputError("gym needs reasoning-gym: pip install 'grpo-kernels[gym]'")


def _literal(value: Any) -> Any:
    """The value as Python can read it again: what is not a literal becomes its text."""
    if isinstance(value, dict):
        return {_literal(key): _literal(item) for key, item in value.items()}
    if type(value) in (list, tuple, set):
        return type(value)(map(_literal, value))
    is_literal = value is None or type(value) in (bool, int, float, complex, str, bytes)
    return value if is_literal and value not in (math.inf, -math.inf) and value == value else str(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
