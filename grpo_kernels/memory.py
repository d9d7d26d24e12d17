"""When the gradient may be written over the logits, and how a later use of them is noticed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

_OVERWRITTEN_VERSION = "_grpo_kernels_overwritten_version"


def may_overwrite(logits: Tensor) -> bool:
    """Whether backward may write over the logits without changing anybody's numbers.

    Autograd's version counter guards every tensor that PyTorch's own nodes have saved. Left alone are: leaves and their
    views (a parameter would be destroyed), memory in which elements overlap, the outputs of nodes that saved them (the
    counter would make their backward fail), and the outputs of autograd functions written in Python, ``torch.compile``
    among them, whose saved tensors the counter does not reach.
    """
    root = _root(logits)
    node = root.grad_fn
    return not (
        root.is_leaf or overlaps_itself(logits) or hasattr(node, "_saved_result") or isinstance(node, BackwardCFunction)
    )


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether two elements may share memory, as in an expanded tensor."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def mark_overwritten(logits: Tensor) -> None:
    """Remember that the logits hold their gradient now."""
    root = _root(logits)
    setattr(root, _OVERWRITTEN_VERSION, root._version)


def check_not_overwritten(logits: Tensor) -> None:
    """Raise if the logits hold their gradient, and nothing has been written to them since."""
    if torch.compiler.is_compiling() or torch.is_inference(logits):
        return
    root = _root(logits)
    if getattr(root, _OVERWRITTEN_VERSION, None) == root._version:
        raise RuntimeError(
            "logits were overwritten by their gradient: compute them again, or give the first use logits.clone()"
        )


def check_may_be_overwritten(logits: Tensor) -> None:
    """Raise ValueError for logits that ``overwrite_logits=True`` must not be used on."""
    if _root(logits).is_leaf:
        raise ValueError("overwrite_logits is True, but logits is a leaf, or a view of one; allowed: computed logits")
    if overlaps_itself(logits):
        raise ValueError(
            f"overwrite_logits is True, but logits of strides {list(logits.stride())} overlap themselves; "
            "allowed: logits whose elements have memory of their own"
        )


def _root(tensor: Tensor) -> Tensor:
    return tensor if tensor._base is None else tensor._base
