"""The adapters inside the base's weights while completions are sampled: one product a layer instead of three."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from grpo.errors import InputError
from grpo.policy import TRAINED, Policy

if TYPE_CHECKING:
    import torch


def merged_if(policy: Policy, wanted: bool | None) -> contextlib.AbstractContextManager[None]:
    """`merged`, if it is wanted; None: where it costs no exactness to speak of."""
    return merged(policy) if (merges_by_default(policy) if wanted is None else wanted) else contextlib.nullcontext()


def merges_by_default(policy: Policy) -> bool:
    """Where merging rounds no more than the passes themselves do, and there is memory: float32 bases on a CPU whose
    copies take at most a quarter of it. Of all memory, not of what is free: a run that is resumed decides the same."""
    import psutil  # type: ignore[import-untyped]
    import torch

    weights: list[Any] = [layer.weight for layer in _layers(policy)]
    copies = sum(weight.numel() * weight.element_size() for weight in weights)
    return (
        policy.device.type == "cpu"
        and {weight.dtype for weight in weights} == {torch.float32}
        and not policy.is_sharded
        and copies <= psutil.virtual_memory().total // 4
    )


@contextlib.contextmanager
def merged(policy: Policy) -> Iterator[None]:
    """Inside, the trained adapter is added into copies of the weights that it adapts; after that the originals are
    back, the very same parameters. The copies take as much memory as those weights.

    Log-probabilities differ from those of the unmerged model by rounding: for SmolLM2-135M in float32 by 1e-5 for the
    tokens of a text and by at most 7e-5 over the vocabulary; more in half precision. `mismatch_metrics` shows it.
    Raises InputError for weights that are quantised or sharded.
    """
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    originals: list[tuple[torch.nn.Module, torch.nn.Parameter]] = []
    layers = [module for module in policy.model.modules() if isinstance(module, BaseTunerLayer)]
    try:
        for layer in layers:
            base = layer.get_base_layer()
            weight = base.weight
            if not weight.dtype.is_floating_point or hasattr(weight, "full_tensor"):
                raise InputError(
                    f"--merge-lora: the weight of a {type(base).__name__} is quantised or sharded; it cannot be merged"
                )
            originals.append((base, weight))
            # A new parameter: the embeddings may be tied to this one, and they are not adapted.
            base.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
            layer.merge(adapter_names=[TRAINED])
        yield
    finally:
        for base, original in originals:
            base.weight = original
        for layer in layers:
            layer.merged_adapters.clear()


def _layers(policy: Policy) -> list[torch.nn.Module]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module.get_base_layer() for module in policy.model.modules() if isinstance(module, BaseTunerLayer)]
