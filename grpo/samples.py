"""What a run keeps of single completions: the rows of samples.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo.evaluate import Evaluation
from grpo.groups import Completion, Group, Parts


def group_samples(step: int, group: Group, names: Sequence[str]) -> list[dict[str, Any]]:
    """The completions of a group that was trained on."""
    return _samples(step, "train", group.completions, group.rewards, group.parts, names)


def evaluation_samples(
    step: int, evaluation: Evaluation, names: Sequence[str], split: str = "held_out"
) -> list[dict[str, Any]]:
    """The answers to held-out tasks, or to those of the split "probe"."""
    return _samples(step, split, evaluation.completions, evaluation.rewards, evaluation.parts, names)


def answer_of_row(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The right answer, for a reader, where the data has it in a column of that name."""
    answer = columns.get("answer")
    return {"answer": answer} if isinstance(answer, (str, int, float)) else {}


def _samples(
    step: int,
    split: str,
    completions: Sequence[Completion],
    rows: Sequence[Sequence[float | None]],
    parts: Sequence[Parts],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "split": split,
            "question": completion.task.id,
            "fingerprint": completion.task.fingerprint,
            "prompt": completion.task.prompt,
            "completion": completion.text,
            "tokens": len(completion.ids),
            "truncated": completion.truncated,
            "rewards": dict(zip(names, row, strict=True)),
            **({"parts": dict(own)} if own else {}),
            **answer_of_row(completion.task.columns),
        }
        for completion, row, own in zip(completions, rows, parts or ({},) * len(completions), strict=True)
    ]
