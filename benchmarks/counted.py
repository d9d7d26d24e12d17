"""Bytes that the row kernels load from and store to the logits, a row, as multiples of the row: a JSON object.

Counted in Triton's interpreter: ``TRITON_INTERPRET=1 python -m benchmarks.counted``. A process of its own, because
TRITON_INTERPRET is read when kernels are defined.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder

from grpo_kernels import GRPOLossConfig
from grpo_kernels.kernels import launch

ROWS, VOCABULARY = 4, 8192


@contextmanager
def counted(tensor: Tensor) -> Iterator[dict[str, int]]:
    """Bytes that kernels move from and to the memory of a tensor."""
    counts = {"loaded": 0, "stored": 0}
    first, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()

    def count(kind: str, pointers: Any, mask: Any) -> None:
        inside = mask.data & (pointers.data >= first) & (pointers.data < first + size)
        counts[kind] += int(inside.sum()) * tensor.element_size()

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counting_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        count("loaded", pointers, mask)
        return load(self, pointers, mask, *rest)

    def counting_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        count("stored", pointers, mask)
        return store(self, pointers, value, mask, *rest)

    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = counting_load, counting_store
    try:
        yield counts
    finally:
        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store


def main() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, ROWS, VOCABULARY)
    ids, active = torch.zeros(1, ROWS, dtype=torch.int64), torch.ones(1, ROWS, dtype=torch.bool)
    ones, config = torch.ones(ROWS), GRPOLossConfig()

    def rows(overwrite: bool) -> Any:
        return launch.grpo_rows(
            logits, ids.flatten(), active.flatten(), ones, None, None, None, ones, ones, None, config, overwrite
        )

    stats = launch.token_stats(logits, ids.flatten(), active.flatten(), 1.0)
    found = {}
    for name, run in {
        "statistics": lambda: launch.token_stats(logits, ids.flatten(), active.flatten(), 1.0),
        "loss": lambda: rows(False),
        "gradient": lambda: launch.row_grad(
            logits, ids.flatten(), stats.peak, stats.total, stats.miss, stats.entropy, ones, ones, 1.0, logits
        ),
        "scale": lambda: launch.scale_rows(logits, 0.5 * ones),
        "loss and gradient": lambda: rows(True),
    }.items():
        logits.normal_()
        with counted(logits) as counts:
            run()
        found[name] = {kind: count / (logits.numel() * logits.element_size()) for kind, count in counts.items()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
