"""Counting the bytes of all tensors that are alive, and the most there were at a time."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

_DEVICE = torch.ops.prim.device.default


class LiveMemory(TorchDispatchMode):
    """Inside, every storage that an operator returns is counted until it is freed; views share one.

    What an operator allocates and frees by itself is not seen. Under `FakeTensorMode`, entered before this, storages
    have sizes and no memory.

    Attributes:
        now, peak: bytes that are alive, and the most since `restart`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._counted: set[int] = set()

    def restart(self) -> None:
        """From here on `peak` is that of what follows."""
        self.peak = self.now

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        if function is _DEVICE and isinstance(arguments[0], FakeTensor):
            return arguments[0].fake_device  # most calls are this one, and the way through FakeTensorMode is long
        output = function(*arguments, **(options or {}))
        for value in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return output

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._counted:
            return
        size = storage.nbytes()
        self._counted.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size).atexit = False

    def _forget(self, key: int, size: int) -> None:
        self._counted.discard(key)
        self.now -= size
