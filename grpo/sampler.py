"""What a sampler draws from: temperature, and the tokens that top_k, top_p and min_p leave.

The order is that of transformers' `generate`: temperature, top_k, top_p, min_p. Log-probabilities on what is left (the
support) are those of the logits with -inf everywhere else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; the defaults draw from all of them."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}; it must be a positive number")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")
        if self.top_k < 0:
            raise InputError(f"top_k is {self.top_k}; it must be 0 (all tokens) or a positive whole number")
        if not 0 <= self.min_p <= 1:
            raise InputError(f"min_p is {self.min_p}; it must be in [0, 1]")

    @property
    def is_restricted(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


def support(logits: Tensor, sampling: Sampling, sampled_ids: Tensor | None = None) -> Tensor:
    """The tokens that can be drawn: bool [..., V], for raw logits [..., V].

    `sampled_ids` [...], int64, were drawn: they are inside, whatever rounding says.
    """
    import torch

    scores = logits.detach().float() / sampling.temperature
    if sampling.top_k:
        kth = scores.topk(min(sampling.top_k, scores.shape[-1]), dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < kth, -math.inf)
    if sampling.top_p < 1:
        ascending, order = scores.sort(dim=-1)
        below = ascending.softmax(-1).cumsum(-1) <= 1 - sampling.top_p
        below[..., -1] = False
        scores = scores.masked_fill(below.scatter(-1, order, below), -math.inf)
    if sampling.min_p > 0:
        probabilities = scores.softmax(-1)
        scores = scores.masked_fill(probabilities < sampling.min_p * probabilities.amax(-1, keepdim=True), -math.inf)
    mask = scores > -math.inf
    if sampled_ids is not None:
        mask.scatter_(-1, sampled_ids.unsqueeze(-1), torch.ones_like(mask[..., :1]))
    return mask


def pack_support(mask: Tensor) -> Tensor:
    """A bool mask [..., V] in an eighth of the memory: uint8 [..., ceil(V / 8)]."""
    import torch

    padded = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.shape[-1] % 8))
    bits = padded.unflatten(-1, (-1, 8))
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(-1).to(torch.uint8)


def unpack_support(packed: Tensor, vocabulary: int) -> Tensor:
    """The mask [..., vocabulary] that was packed; padding, all 0, becomes all True: no row is without a token."""
    import torch

    bits = packed.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=packed.device) & 1
    mask = bits.flatten(-2)[..., :vocabulary].bool()
    return mask | ~mask.any(-1, keepdim=True)
