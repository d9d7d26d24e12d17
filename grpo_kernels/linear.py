"""The chunk loop that joins the lm_head's matrix products to the row operations.

``logits = hidden @ weight.T`` is never held whole. Rows (tokens) are taken in chunks; per chunk one product fills a
reused buffer, the row operations turn the buffer into its own gradient, and a second product gives the gradient of the
hidden states, for the rows that have one. With N rows needed and G rows with a gradient this is
2 (N + G) V D operations, and 2 G V D more for a trainable head, whose gradient is accumulated in float32. Nothing is
computed again in backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .backend import TRITON_DEVICES
from .config import GRPOLossConfig
from .torch_rows import RowLoss, RowStats, compute_dtype
from .vocab_parallel import VocabShard

# Columns of a half-precision head that are converted at a time where the device cannot multiply into float32.
CONVERTED_COLUMNS = 8192
# Rows below which a matrix product no longer uses the device well, and bytes of logits held at a time.
MIN_CHUNK_ROWS = {"cpu": 128, "cuda": 1024}
DEFAULT_CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 512 << 20}
# Products of other numbers of rows are up to a fifth slower.
ROW_MULTIPLE = 64


class Head(NamedTuple):
    """An lm_head: ``logits = softcap(logit_scale * (hidden @ weight.T + bias))``.

    weight: [V, D]; bias: [V] or None; softcap: ``c * tanh(x / c)`` with c = softcap, or 0 for none; shard: which part
    of a vocabulary spread over processes these V are, or None.
    """

    weight: Tensor
    bias: Tensor | None
    softcap: float
    logit_scale: float
    shard: VocabShard | None = None


class HeadGrads(NamedTuple):
    """Gradients of a chunk loop: hidden [M, D], weight [V, D], bias [V]; None where not asked for."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


class ChunkMemory(NamedTuple):
    """What a chunk is held in: how many rows at most, and the dtypes of their logits and of the logits' gradient.

    Logits are in the compute dtype, so that statistics come from unrounded ones, or in that of the hidden states where
    the caller wants to trade exactness for speed. The gradient of half-precision heads is rounded, as their product
    takes it, but not where the device multiplies no half precision (a CPU).
    """

    rows: int
    logits: torch.dtype
    grad: torch.dtype


def chunk_memory(hidden: Tensor, rows: int, round_logits: bool) -> ChunkMemory:
    """The memory of a chunk of that many rows."""
    logits = hidden.dtype if round_logits else compute_dtype(hidden)
    return ChunkMemory(rows, logits, hidden.dtype if hidden.device.type in TRITON_DEVICES else logits)


def chunk_rows(hidden: Tensor, vocabulary: int, with_grad: bool, chunk_bytes: int | None, round_logits: bool) -> int:
    """Rows of a chunk: what the byte budget holds, and not fewer than the device multiplies well.

    A budget that the caller names is kept to, down to a single row.
    """
    _, logits, grad = chunk_memory(hidden, 1, round_logits)
    bytes_of_row = vocabulary * (logits.itemsize + (grad.itemsize if with_grad and grad != logits else 0))
    if chunk_bytes is not None:
        return max(1, chunk_bytes // bytes_of_row)
    kind = hidden.device.type if hidden.device.type in MIN_CHUNK_ROWS else "cuda"
    rows = DEFAULT_CHUNK_BYTES[kind] // bytes_of_row
    return max(MIN_CHUNK_ROWS[kind], rows - rows % ROW_MULTIPLE)


class LogitsBuffer:
    """The one piece of memory for logits, [chunk rows, V], and one for their gradient if that has another dtype."""

    def __init__(self, hidden: Tensor, head: Head, memory: ChunkMemory, rows: int, with_grad: bool) -> None:
        shape = (min(memory.rows, rows), head.weight.shape[0])
        self.memory = torch.empty(shape, dtype=memory.logits, device=hidden.device)
        self.grad_memory = None
        if with_grad:
            self.grad_memory = self.memory
            if memory.grad != memory.logits:
                self.grad_memory = torch.empty(shape, dtype=memory.grad, device=hidden.device)

    def grad(self, rows: int) -> Tensor | None:
        """Where the gradient of that many rows goes; None if none is wanted."""
        return None if self.grad_memory is None else self.grad_memory[:rows]

    def logits(self, hidden: Tensor, head: Head) -> Tensor:
        """``hidden @ weight.T + bias``, [n, V]."""
        out = self.memory[: hidden.shape[0]]
        if hidden.dtype == out.dtype:
            torch.mm(hidden, head.weight.t(), out=out)
        elif hidden.is_cuda:
            torch.mm(hidden, head.weight.t(), out_dtype=out.dtype, out=out)
        else:
            wide = hidden.to(out.dtype)
            for start in range(0, out.shape[1], CONVERTED_COLUMNS):
                part = slice(start, start + CONVERTED_COLUMNS)
                out[:, part] = wide @ head.weight[part].to(out.dtype).t()
        if head.bias is not None:
            out.add_(head.bias)
        return out


def hidden_grad(grad: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """``grad @ weight``, [n, D], from [n, V]: accumulated in float32, returned in ``dtype``."""
    if grad.dtype == weight.dtype:
        if grad.is_cuda and dtype != grad.dtype:
            return torch.mm(grad, weight, out_dtype=dtype)
        return (grad @ weight).to(dtype)
    total = grad.new_zeros(grad.shape[0], weight.shape[1])
    for start in range(0, weight.shape[0], CONVERTED_COLUMNS):
        part = slice(start, start + CONVERTED_COLUMNS)
        torch.addmm(total, grad[:, part], weight[part].to(grad.dtype), out=total)
    return total.to(dtype)


def add_product_(total: Tensor, grad: Tensor, hidden: Tensor) -> None:
    """``total += grad.T @ hidden``, [V, D], from [n, V] and [n, D]: the sum stays in float32."""
    if grad.dtype == total.dtype:
        torch.addmm(total, grad.t(), hidden.to(grad.dtype), out=total)
        return
    for start in range(0, total.shape[0], CONVERTED_COLUMNS):
        part = slice(start, start + CONVERTED_COLUMNS)
        if grad.is_cuda:
            total[part] += torch.mm(grad[:, part].t(), hidden, out_dtype=total.dtype)
        else:
            total[part] += grad[:, part].to(total.dtype).t() @ hidden.to(total.dtype)


class GradAccumulator:
    """Collects the gradients of a chunk loop, each where it is wanted."""

    def __init__(self, hidden: Tensor, head: Head, wanted: tuple[bool, bool, bool]) -> None:
        wide = compute_dtype(hidden)
        self.head = head
        self.dtype = hidden.dtype
        # Parts of a sum over processes are not rounded before they are added.
        self.hidden = torch.zeros_like(hidden, dtype=wide if head.shard else hidden.dtype) if wanted[0] else None
        self.weight = torch.zeros_like(head.weight, dtype=wide) if wanted[1] else None
        self.bias = None
        if wanted[2]:
            assert head.bias is not None
            self.bias = torch.zeros_like(head.bias, dtype=wide)

    @property
    def is_wanted(self) -> bool:
        return any(grad is not None for grad in (self.hidden, self.weight, self.bias))

    def add(self, rows: Tensor, hidden: Tensor, grad: Tensor) -> None:
        """The gradient of the logits [n, V] of ``hidden`` [n, D], which are ``rows`` of all hidden states."""
        if self.hidden is not None:
            self.hidden.index_copy_(0, rows, hidden_grad(grad, self.head.weight, self.hidden.dtype))
        if self.weight is not None:
            add_product_(self.weight, grad, hidden)
        if self.bias is not None:
            self.bias.add_(grad.sum(0, dtype=self.bias.dtype))

    def finish(self) -> HeadGrads:
        """The gradients, in the dtypes of what they belong to."""
        weight = None if self.weight is None else self.weight.to(self.head.weight.dtype)
        bias = None
        if self.bias is not None:
            assert self.head.bias is not None
            bias = self.bias.to(self.head.bias.dtype)
        hidden = self.hidden
        if hidden is not None and self.head.shard is not None:
            hidden = self.head.shard.sum_(hidden).to(self.dtype)
        return HeadGrads(hidden, weight, bias)


# A row operation takes a chunk's logits [n, V], memory for their gradient (None: not wanted) and its place among the
# rows; it returns per-row results, [n] each, with the positions in the chunk that have a gradient (None: all).
RowOperation = Callable[[Tensor, Tensor | None, slice], tuple[tuple[Tensor, ...], Tensor | None]]


def run_chunks(
    hidden: Tensor, head: Head, rows: Tensor, memory: ChunkMemory, grads: GradAccumulator, operation: RowOperation
) -> list[tuple[Tensor, ...]]:
    """Apply ``operation`` to the logits of ``hidden[rows]``, a chunk at a time; returns the results of every chunk.

    Args:
        hidden: [M, D]; rows: [n], int64.
    """
    buffer = LogitsBuffer(hidden, head, memory, rows.numel(), grads.is_wanted)
    results = []
    for start in range(0, rows.numel(), memory.rows):
        part = slice(start, min(start + memory.rows, rows.numel()))
        chunk = rows[part]
        chunk_hidden = hidden.index_select(0, chunk)
        grad = buffer.grad(chunk.numel())
        result, kept = operation(buffer.logits(chunk_hidden, head), grad, part)
        results.append(result)
        if grad is not None:
            if kept is not None and kept.numel() < chunk.numel():
                chunk, chunk_hidden, grad = chunk[kept], chunk_hidden[kept], grad.index_select(0, kept)
            if chunk.numel():
                grads.add(chunk, chunk_hidden, grad)
    return results


def loss_chunks(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    needed: Tensor,
    vectors: Sequence[Tensor | None],
    config: GRPOLossConfig,
    memory: ChunkMemory,
    wanted: tuple[bool, bool, bool],
    operations,
) -> tuple[RowStats, RowLoss, HeadGrads]:
    """Loss, statistics and gradients of token-level objectives.

    Args:
        hidden: [M, D]; ids: [M]; needed: [M], bool: the rows to compute; the others get 0 (ratio: 1).
        vectors: ``(advantages, old_logps, ref_logps, token_weights, weights, entropy_weights, temperatures)``, [M] each
            or None.
        wanted: whether the gradients of hidden states, weight and bias are.
        operations: ``torch_rows`` or ``kernels.launch``.
    """
    grads = GradAccumulator(hidden, head, wanted)
    rows = needed.nonzero().squeeze(-1)
    row_ids = ids[rows]
    row_vectors = [None if vector is None else vector[rows] for vector in vectors]
    # Without old log-probabilities nothing is clipped, and the device need not be asked which rows have a gradient.
    may_clip, has_entropy = vectors[1] is not None, vectors[5] is not None

    def operation(logits: Tensor, grad: Tensor | None, part: slice) -> tuple[tuple[Tensor, ...], Tensor | None]:
        chunk_vectors = [None if vector is None else vector[part] for vector in row_vectors]
        stats, row_loss = operations.fused_rows_(
            logits, row_ids[part], *chunk_vectors, config, head.softcap, head.logit_scale, grad
        )
        kept = None
        if grad is not None and may_clip and not has_entropy:
            kept = (row_loss.derivative != 0).nonzero().squeeze(-1)
        return (*stats, *row_loss), kept

    results = run_chunks(hidden, head, rows, memory, grads, operation)
    count = len(RowStats._fields)
    defaults = [0.0] * (count + len(RowLoss._fields))
    defaults[count + RowLoss._fields.index("ratio")] = 1.0
    fields = _scatter(results, rows, ids, defaults, compute_dtype(hidden))
    return RowStats(*fields[:count]), RowLoss(*fields[count:]), grads.finish()


def logp_chunks(
    hidden: Tensor,
    head: Head,
    ids: Tensor,
    needed: Tensor,
    grad_logps: Tensor | None,
    grad_entropy: Tensor | None,
    temperature: float | Tensor,
    memory: ChunkMemory,
    wanted: tuple[bool, bool, bool],
    operations,
) -> tuple[RowStats, HeadGrads]:
    """Log-probabilities and entropies, and the gradients of ``(grad_logps * logps + grad_entropy * entropy).sum()``.

    Args:
        hidden: [M, D]; ids, grad_logps, grad_entropy: [M]; needed: [M], bool; the others get 0.
        temperature: one for all rows, or [M].
    """
    grads = GradAccumulator(hidden, head, wanted)
    rows = needed.nonzero().squeeze(-1)
    row_ids = ids[rows]
    upstream = [None if grad is None else grad[rows] for grad in (grad_logps, grad_entropy)]
    row_temperature = temperature[rows] if isinstance(temperature, Tensor) else temperature

    def operation(logits: Tensor, grad: Tensor | None, part: slice) -> tuple[tuple[Tensor, ...], Tensor | None]:
        chunk_upstream = [None if grad is None else grad[part] for grad in upstream]
        chunk_temperature = row_temperature[part] if isinstance(row_temperature, Tensor) else row_temperature
        return operations.logp_rows_(
            logits, row_ids[part], *chunk_upstream, chunk_temperature, head.softcap, head.logit_scale, grad
        ), None

    results = run_chunks(hidden, head, rows, memory, grads, operation)
    fields = _scatter(results, rows, ids, [0.0] * len(RowStats._fields), compute_dtype(hidden))
    return RowStats(*fields), grads.finish()


def _scatter(
    results: list[tuple[Tensor, ...]], rows: Tensor, ids: Tensor, defaults: list[float], dtype: torch.dtype
) -> list[Tensor]:
    """The chunks' results at their rows, [M] each, with defaults elsewhere."""
    fields = [torch.full(ids.shape, default, dtype=dtype, device=ids.device) for default in defaults]
    if results:
        for field, parts in zip(fields, zip(*results, strict=True), strict=True):
            field.index_copy_(0, rows, torch.cat(parts))
    return fields
