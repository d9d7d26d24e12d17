"""Padded [B, T] and packed [N] tokens: where each packed row stands among the padded ones, and back.

The objective works on small [B, T] tensors in either case. Logits and hidden states stay as the caller has them; the
row operations see them, and vectors of their rows, as [B, T, ...] when padded and as [1, N, ...] when packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


class Padded:
    """The caller's tensors are [B, T], and rows are tokens."""

    def rows(self, tokens: Tensor) -> Tensor:
        return tokens

    def tokens(self, rows: Tensor) -> Tensor:
        return rows

    def as_given(self, tokens: Tensor) -> Tensor:
        return tokens


@dataclass(frozen=True)
class Packed:
    """Sequences stand one after the other in N rows.

    Attributes:
        row: [B, T], int64, the row of each token (any row beyond a sequence's end).
        exists: [B, T], bool: tokens before the end of their sequence.
        token: [N], int64, the place of each row among the B * T tokens.
    """

    row: Tensor
    exists: Tensor
    token: Tensor

    def rows(self, tokens: Tensor) -> Tensor:
        """[B, T] to [1, N]."""
        return tokens.flatten()[self.token].unsqueeze(0)

    def tokens(self, rows: Tensor) -> Tensor:
        """[1, N], [N] or [N, V] to [B, T] or [B, T, V]; 0 beyond the end of a sequence."""
        rows = rows.squeeze(0) if rows.shape[0] == 1 and rows.dim() > 1 else rows
        exists = self.exists.unsqueeze(-1) if rows.dim() == 2 else self.exists
        return rows[self.row].masked_fill(~exists, 0)

    def as_given(self, tokens: Tensor) -> Tensor:
        """[B, T] to [N], as the caller's tensors are; a value per sequence, [B, 1], stays."""
        return tokens.flatten()[self.token] if tokens.shape == self.row.shape else tokens


Layout = Padded | Packed


def packed_layout(cu_seqlens: Tensor, count: int, max_seqlen: int) -> Packed:
    """The layout of sequences k at rows ``cu_seqlens[k]`` to ``cu_seqlens[k + 1]``.

    Args:
        cu_seqlens: [B + 1], integers from 0 to ``count``, not decreasing; count: rows in all.
        max_seqlen: at least the length of the longest sequence.
    """
    starts, ends = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
    row = starts.unsqueeze(-1) + torch.arange(max_seqlen, device=cu_seqlens.device)
    index = torch.arange(count, device=cu_seqlens.device)
    sequence = torch.bucketize(index, ends, right=True)
    return Packed(
        row=row.clamp(max=max(count - 1, 0)),
        exists=row < ends.unsqueeze(-1),
        token=sequence * max_seqlen + index - starts[sequence],
    )
