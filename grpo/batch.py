"""Sequences as tensors: prompts padded on the left, completions on the right, masks from lengths alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")


@dataclass(frozen=True)
class TrainSequence:
    """One completion to train on: its prompt, its sampled tokens, its advantage, and what is known of its tokens."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    advantage: float
    temperature: float | None = None
    """Where it differs in a group; None: the run's."""
    is_masked: bool = False
    """It counts as a sequence of the batch, and its tokens contribute nothing."""
    sampler_logps: tuple[float, ...] | None = None
    old_logps: torch.Tensor | None = field(default=None, compare=False)  # [T] float32, of the policy that sampled
    ref_logps: torch.Tensor | None = field(default=None, compare=False)  # [T] float32
    token_weights: torch.Tensor | None = field(default=None, compare=False)  # [T] float32
    support: torch.Tensor | None = field(default=None, compare=False)  # [T, ceil(V / 8)] uint8, packed


@dataclass(frozen=True)
class Batch:
    """B sequences of P prompt and T completion positions. None: nothing is known of any token."""

    prompt_ids: torch.Tensor  # [Q, P] int64: each prompt once
    prompt_mask: torch.Tensor  # [Q, P] int64, 1 on real tokens
    prompt_rows: torch.Tensor  # [B] int64: which prompt a sequence has
    completion_ids: torch.Tensor  # [B, T] int64
    completion_mask: torch.Tensor  # [B, T] bool, True on real tokens
    advantages: torch.Tensor  # [B] float32
    temperatures: torch.Tensor | None = None  # [B] float32
    old_logps: torch.Tensor | None = None  # [B, T] float32
    ref_logps: torch.Tensor | None = None  # [B, T] float32
    token_weights: torch.Tensor | None = None  # [B, T] float32
    support: torch.Tensor | None = None  # [B, T, ceil(V / 8)] uint8

    def rows(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Values [B, T, ...] of the tokens, a tensor on the CPU for each sequence, without its padding."""
        lengths = self.completion_mask.sum(-1).tolist()
        values = values.detach().cpu()
        return [row[:length].clone() for row, length in zip(values, lengths, strict=True)]


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
    temperatures = [s.temperature for s in sequences]
    known = {
        name: _stacked([getattr(s, name) for s in sequences], device)
        for name in ("old_logps", "ref_logps", "token_weights", "support")
    }
    return Batch(
        prompt_ids=torch.tensor(prompt_ids, device=device),
        prompt_mask=torch.tensor(prompt_mask, device=device),
        prompt_rows=torch.tensor([prompts[s.prompt_ids] for s in sequences], device=device),
        completion_ids=torch.tensor(completion_ids, device=device),
        completion_mask=torch.tensor(completion_mask, device=device).bool(),
        advantages=torch.tensor([s.advantage for s in sequences], dtype=torch.float32, device=device),
        temperatures=None if None in temperatures else torch.tensor(temperatures, dtype=torch.float32, device=device),
        **known,
    )


def _stacked(rows: Sequence[torch.Tensor | None], device: torch.device | str) -> torch.Tensor | None:
    """Rows [T, ...] padded on the right with 0 to one tensor [B, T, ...]; None unless every row is known."""
    import torch

    if any(row is None for row in rows):
        return None
    return torch.nn.utils.rnn.pad_sequence([row for row in rows if row is not None], batch_first=True).to(device)


def micro_batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in runs of `size`; the last may be shorter."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


@dataclass(frozen=True)
class Totals:
    """What one optimizer step averages over: all its completions and all their tokens, of all processes."""

    sequences: int
    tokens: int

    @classmethod
    def of(cls, sequences: Sequence[TrainSequence]) -> Totals:
        return cls(len(sequences), sum(len(s.completion_ids) for s in sequences if not s.is_masked))


def window_share(loss_type: str, part: Totals, whole: Totals) -> tuple[int | None, float]:
    """(num_items_in_batch, factor) with which the losses of a step's parts add up to the loss of the whole.

    The loss of a part is normalised by its own sequences or tokens, by loss type; the factor undoes that.
    dapo, cispo and vespo take the number of the whole's tokens instead.
    """
    if loss_type in ("dapo", "cispo", "vespo"):
        return whole.tokens, 1.0
    if loss_type == "bnpo":
        return None, part.tokens / whole.tokens
    return None, part.sequences / whole.sequences
