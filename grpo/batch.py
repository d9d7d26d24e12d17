"""Sequences as tensors: prompts padded on the left, completions on the right, masks from lengths alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class TrainSequence:
    """One completion to train on: its prompt, its sampled tokens and its advantage."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    advantage: float


@dataclass(frozen=True)
class Batch:
    """B sequences of P prompt and T completion positions."""

    prompt_ids: torch.Tensor  # [Q, P] int64: each prompt once
    prompt_mask: torch.Tensor  # [Q, P] int64, 1 on real tokens
    prompt_rows: torch.Tensor  # [B] int64: which prompt a sequence has
    completion_ids: torch.Tensor  # [B, T] int64
    completion_mask: torch.Tensor  # [B, T] bool, True on real tokens
    advantages: torch.Tensor  # [B] float32


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[list[list[int]], list[list[int]]]:
    """(ids, mask) of equal length, the rows on the right. `pad` may be any id, also one in the rows."""
    width = max(len(row) for row in rows)
    ids = [[pad] * (width - len(row)) + list(row) for row in rows]
    return ids, [[0] * (width - len(row)) + [1] * len(row) for row in rows]


def pad_right(rows: Sequence[Sequence[int]], pad: int) -> tuple[list[list[int]], list[list[int]]]:
    """(ids, mask) of equal length, the rows on the left."""
    width = max(len(row) for row in rows)
    ids = [list(row) + [pad] * (width - len(row)) for row in rows]
    return ids, [[1] * len(row) + [0] * (width - len(row)) for row in rows]


def positions(attention_mask: torch.Tensor) -> torch.Tensor:
    """Position ids of a mask [B, S]: 0 at each row's first real token, whatever padding comes before it."""
    return (attention_mask.cumsum(-1) - 1).clamp(min=0)


def collate(sequences: Sequence[TrainSequence], pad: int, device: torch.device | str = "cpu") -> Batch:
    import torch

    prompts = {prompt: row for row, prompt in enumerate(dict.fromkeys(s.prompt_ids for s in sequences))}
    prompt_ids, prompt_mask = pad_left(list(prompts), pad)
    completion_ids, completion_mask = pad_right([s.completion_ids for s in sequences], pad)
    return Batch(
        prompt_ids=torch.tensor(prompt_ids, device=device),
        prompt_mask=torch.tensor(prompt_mask, device=device),
        prompt_rows=torch.tensor([prompts[s.prompt_ids] for s in sequences], device=device),
        completion_ids=torch.tensor(completion_ids, device=device),
        completion_mask=torch.tensor(completion_mask, device=device).bool(),
        advantages=torch.tensor([s.advantage for s in sequences], dtype=torch.float32, device=device),
    )


def micro_batches(sequences: Sequence[TrainSequence], size: int) -> Iterator[Sequence[TrainSequence]]:
    """The sequences in runs of `size`; the last may be shorter."""
    for start in range(0, len(sequences), size):
        yield sequences[start : start + size]


@dataclass(frozen=True)
class Window:
    """What one optimizer step averages over: all its completions and all their tokens."""

    sequences: int
    tokens: int

    @classmethod
    def of(cls, sequences: Sequence[TrainSequence]) -> Window:
        return cls(len(sequences), sum(len(s.completion_ids) for s in sequences))


def window_share(loss_type: str, part: Window, whole: Window) -> tuple[int | None, float]:
    """(num_items_in_batch, factor) with which the losses of a window's parts add up to the loss of the whole.

    The loss of a part is normalised by its own sequences or tokens, by loss type; the factor undoes that.
    dapo, cispo and vespo take the number of the window's tokens instead.
    """
    if loss_type in ("dapo", "cispo", "vespo"):
        return whole.tokens, 1.0
    if loss_type == "bnpo":
        return None, part.tokens / whole.tokens
    return None, part.sequences / whole.sequences
