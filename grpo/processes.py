"""One process or several: who does what, and how sums and lists come together.

The gradient of the adapters is small, so that it is added up once a step, after the last micro-batch: the sum over
all processes of sums that were each divided by global counts is the gradient of the global mean, whatever the number
of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

Item = TypeVar("Item")


def start() -> None:
    """Join the other processes, where a launcher (torchrun, accelerate launch) started several."""
    from accelerate import PartialState

    PartialState(cpu=not torch.cuda.is_available())


def rank() -> int:
    return dist.get_rank() if _several() else 0


def count() -> int:
    return dist.get_world_size() if _several() else 1


def share(items: Sequence[Item]) -> Sequence[Item]:
    """This process's part of the items: consecutive, and as many as the others have, or one more."""
    size, rest = divmod(len(items), count())
    start = rank() * size + min(rank(), rest)
    return items[start : start + size + (rank() < rest)]


def gather(items: Sequence[Item]) -> list[Item]:
    """The items of all processes, in the order of their ranks."""
    if not _several():
        return list(items)
    everyone: list[Any] = [None] * count()
    dist.all_gather_object(everyone, list(items))
    return [item for part in everyone for item in part]


def largest(number: int) -> int:
    """The largest of all processes' numbers."""
    return max(gather([number]))


def sum_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Add up the gradients of all processes; one that is missing here counts as 0. Sharded ones are sums already."""
    if not _several():
        return
    for parameter in parameters:
        if hasattr(parameter, "full_tensor"):
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)


def same_parameters(parameters: Iterable[nn.Parameter]) -> None:
    """Give every process the first one's values."""
    if not _several():
        return
    for parameter in parameters:
        dist.broadcast(parameter.data, 0)


def shard(model: nn.Module) -> None:
    """Spread the model's parameters over the processes: each decoder layer by itself, then the rest (FSDP2)."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList) and len(module) and all(_is_layer(child) for child in module):
            for layer in module:
                fully_shard(layer)
    fully_shard(model)
    register_fsdp_forward_method(model, "generate")


def wait() -> None:
    """Until every process is here."""
    if _several():
        dist.barrier()


def _is_layer(module: nn.Module) -> bool:
    """A decoder layer has attention and more in it."""
    return len(list(module.children())) > 1


def _several() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
