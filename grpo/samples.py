"""What a run keeps of single completions: the rows of samples.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.evaluate import Evaluation
from grpo.groups import Completion, Group


def group_samples(
    step: int, group: Group, names: Sequence[str], parts: Mapping[int, dict[str, float | None]] | None = None
) -> list[dict[str, Any]]:
    """The completions of a group that was trained on."""
    rows = zip(group.completions, group.rewards, strict=True)
    return [_sample(step, "train", c, row, names) | _parts(parts, c) for c, row in rows]


def evaluation_samples(step: int, evaluation: Evaluation, names: Sequence[str]) -> list[dict[str, Any]]:
    """The greedy answers to held-out tasks."""
    rows = zip(evaluation.completions, evaluation.rewards, strict=True)
    return [_sample(step, "held_out", completion, row, names) for completion, row in rows]


def _sample(
    step: int, split: str, completion: Completion, row: Sequence[float | None], names: Sequence[str]
) -> dict[str, Any]:
    return {
        "step": step,
        "split": split,
        "question": completion.task.id,
        "fingerprint": completion.task.fingerprint,
        "prompt": completion.task.prompt,
        "completion": completion.text,
        "tokens": len(completion.ids),
        "truncated": completion.truncated,
        "rewards": dict(zip(names, row, strict=True)),
    }


def _parts(parts: Mapping[int, dict[str, float | None]] | None, completion: Completion) -> dict[str, Any]:
    found = (parts or {}).get(id(completion))
    return {"parts": found} if found else {}
