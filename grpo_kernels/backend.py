"""Which implementation runs: Triton on the devices it serves, torch elsewhere, unless the caller forces one."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

BACKENDS = ("triton", "torch", "eager")
TRITON_DEVICES = ("cuda", "xpu")  # ROCm devices are "cuda" to torch
TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


_TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None


def has_triton() -> bool:
    """Whether triton is installed."""
    return _TRITON_IS_INSTALLED


def is_interpreting() -> bool:
    """Whether Triton kernels run in its interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def choose_backend(requested: str | None, logits: Tensor) -> str:
    """The backend for ``logits``: ``requested``, or ``GRPO_KERNELS_BACKEND``, or what suits the device.

    Raises:
        ValueError: an unknown backend, or "triton" where it cannot run.
    """
    source = "backend"
    if requested is None:
        requested, source = os.environ.get("GRPO_KERNELS_BACKEND") or None, "GRPO_KERNELS_BACKEND"
    device = logits.device.type
    if requested is None:
        suits = device in TRITON_DEVICES and logits.dtype in TRITON_DTYPES and has_triton()
        return "triton" if suits else "torch"
    if requested not in BACKENDS:
        raise ValueError(f"{source} is {requested!r}; allowed: {', '.join(BACKENDS)}")
    if requested == "triton":
        if not has_triton():
            raise ValueError(f"{source} is 'triton', but triton is not installed; allowed here: torch, eager")
        if device == "cpu" and not is_interpreting():
            raise ValueError(
                f"{source} is 'triton', but logits are on the CPU: set TRITON_INTERPRET=1 before Python starts to run "
                "the kernels in Triton's interpreter, or use torch or eager"
            )
        if device not in (*TRITON_DEVICES, "cpu"):
            raise ValueError(f"{source} is 'triton', but logits are on {device}; allowed there: torch, eager")
        if logits.dtype not in TRITON_DTYPES:
            raise ValueError(
                f"{source} is 'triton', but logits are {logits.dtype}; allowed: float32, bfloat16, float16 "
                "(torch and eager also take float64)"
            )
    return requested
