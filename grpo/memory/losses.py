"""What the ways to compute the loss hold, from the last hidden states [B, T, D] on.

Each is a function of hidden states and head that allocates what the real one does on the device, and whose backward
ends in the gradient of the hidden states. Vectors of one number a token are left out, but for the many of `linear`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_kernels import LMHead, grpo_loss
from grpo_kernels.linear import Head, LogitsBuffer, chunk_memory, chunk_rows
from grpo_kernels.torch_rows import BLOCK_ELEMENTS, RowLoss, RowStats

# Tokens and columns of the tile of logits that TRL 1.16 holds (trl.kernels.chunked_logprob, trl.trainer.utils).
TRL_TILE = (4096, 32768)


def linear(hidden: Tensor, head: LMHead, device: str) -> Tensor:
    """`grpo_kernels.linear_grpo_loss`: a chunk of logits, its gradient, and the gradient of the hidden states."""
    return _Linear.apply(hidden.flatten(0, 1), head.weight, _block(device, 1 if head.softcap is None else 3), device)


def logits(hidden: Tensor, head: LMHead, device: str) -> Tensor:
    """`grpo_kernels.grpo_loss`: the model's logits, over which backward writes their gradient."""
    return _Overwritten.apply(model_logits(hidden, head), device)


def eager(hidden: Tensor, head: LMHead, device: str) -> Tensor:
    """The model's logits and autograd through their log-softmax in float32: the least that plain PyTorch does."""
    log_probs = torch.log_softmax(model_logits(hidden, head).float(), dim=-1)
    return log_probs.gather(-1, _ids(hidden)[..., None]).sum()


def reference(hidden: Tensor, head: LMHead, device: str) -> Tensor:
    """`grpo_loss(backend="eager")`, which is `--loss-path eager`: entropies have a graph, too."""
    ids, advantages = _ids(hidden), torch.zeros(hidden.shape[0])
    return grpo_loss(model_logits(hidden, head), ids, advantages, backend="eager").loss


def trl(hidden: Tensor, head: LMHead, device: str) -> Tensor:
    """TRL 1.16's head: tiles of logits in the dtype of the model, computed again in backward."""
    return _Tiles.apply(hidden.flatten(0, 1))


LOSSES: dict[str, Callable[[Tensor, LMHead, str], Tensor]] = {
    "linear": linear,
    "logits": logits,
    "eager": eager,
    "reference": reference,
    "trl": trl,
}


def model_logits(hidden: Tensor, head: LMHead) -> Tensor:
    """[B, T, V], as the models compute them."""
    values = F.linear(hidden, head.weight, head.bias)
    if head.logit_scale != 1.0:
        values = values * head.logit_scale
    if head.softcap is not None:
        values = torch.tanh(values / head.softcap) * head.softcap
    return values


def _block(device: str, count: int) -> int:
    """Numbers in the blocks that `grpo_kernels.torch_rows` works in on a CPU; Triton's kernels need none."""
    return count * BLOCK_ELEMENTS if device == "cpu" else 0


def _ids(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape[:2], dtype=torch.int64)


class _Linear(torch.autograd.Function):
    """The memory of `grpo_kernels.linear.run_chunks` on the device; of its computation, nothing."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, block: int, device: str) -> Tensor:
        count, vocabulary = hidden.shape[0], weight.shape[0]
        like = torch.empty(1, 1, dtype=hidden.dtype, device=device)
        memory = chunk_memory(like, chunk_rows(like, vocabulary, True, None, False), round_logits=False)
        rows = min(count, memory.rows)
        results = torch.empty(2 * len(RowStats._fields + RowLoss._fields), count)  # of the chunks, and of all
        grad_hidden = torch.empty_like(hidden)
        buffer = LogitsBuffer(hidden, Head(weight, None, 0.0, 1.0), memory, count, with_grad=True)
        scratch = torch.empty(block)
        chunk, product = torch.empty_like(hidden[:rows]), torch.empty_like(hidden[:rows])
        del results, buffer, scratch, chunk, product
        ctx.save_for_backward(grad_hidden)
        return hidden.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.empty_like(ctx.saved_tensors[0]), None, None, None


class _Overwritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, device: str) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.block = _block(device, 3)
        return logits.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        block = torch.empty(ctx.block)
        del block
        return ctx.saved_tensors[0].detach(), None


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        ctx.save_for_backward(hidden)
        tile = _tile(hidden)
        del tile
        return hidden.new_empty((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden, dtype=torch.float32)
        tile = _tile(hidden)
        del tile
        return grad_hidden.to(hidden.dtype)


def _tile(hidden: Tensor) -> Tensor:
    tokens, columns = TRL_TILE
    return torch.empty(min(hidden.shape[0], tokens), columns, dtype=hidden.dtype)
