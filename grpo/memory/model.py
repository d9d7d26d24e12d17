"""A policy without weights: the model of a configuration, with its adapters, as tensors that have a size alone."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from grpo.errors import InputError
from grpo.memory.live import LiveMemory
from grpo.policy import Policy, make_policy

# A fake model has no tokenizer: what is read of one.
NO_TOKENIZER: Any = SimpleNamespace(pad_token_id=0, eos_token_id=0)
# Bytes of AdamW's two averages for a parameter, by `--optim`; the 8-bit one has a float32 absmax for 256 of each.
OPTIMIZER_BYTES = {"adamw": 8.0, "adamw_8bit": 2.0 + 8.0 / 256}


@dataclass(frozen=True)
class ModelOptions:
    """What of the options decides about the model; names and meanings as in `TrainConfig`."""

    dtype: str = "bfloat16"
    load_in_4bit: bool = False
    gradient_checkpointing: bool = True
    attn_implementation: str | None = None
    lora_r: int = 16
    lora_target_modules: tuple[str, ...] = ("all-linear",)
    use_dora: bool = False
    optim: str = "adamw"


class FakePolicy:
    """A `Policy` whose tensors are fake, and the memory that they would take.

    Fake tensors are on the CPU whatever is simulated: a build without CUDA computes no gradients of others. Attention
    is then that of the CPU's flash kernel, which like the GPU's holds no scores.

    Attributes:
        weights, adapters, optimizer: bytes; the gradients of the adapters are as large as these.
        adapted: bytes of the weights that have adapters, copies of which are what merging takes.
    """

    def __init__(self, config: PretrainedConfig, options: ModelOptions) -> None:
        self.live = LiveMemory()
        self._fake = FakeTensorMode()
        policy = _on_meta(config, options)
        with self.simulating():
            _replace_tensors(policy.model)
            self.policy = dataclasses.replace(policy, device=torch.device("cpu"))
            for parameter in self.policy.parameters():
                # They are there from the first micro-batch of a step on.
                parameter.grad = torch.empty_like(parameter)
        trained = self.policy.parameters()
        self.adapters = sum(p.nbytes for p in trained)
        self.weights = self.live.now - 2 * self.adapters
        layers = [module for module in self.policy.model.modules() if isinstance(module, BaseTunerLayer)]
        self.adapted = sum(p.nbytes for layer in layers for p in layer.get_base_layer().parameters(recurse=False))
        self.optimizer = round(OPTIMIZER_BYTES[options.optim] * sum(p.numel() for p in trained))

    @contextlib.contextmanager
    def simulating(self) -> Iterator[LiveMemory]:
        """Inside, new tensors are fake and counted; raises InputError for models whose shapes depend on values."""
        try:
            with self._fake, self.live:
                self.live.restart()
                yield self.live
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException) as error:
            raise InputError(
                f"this model cannot be simulated: what it computes depends on values ({one_line(error)})"
            ) from error


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def read_config(path: str) -> PretrainedConfig:
    """The configuration of a folder, a config.json or a Hub id. Raises InputError where there is none."""
    try:
        return AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"--model {path}: its configuration cannot be read: {one_line(error)}") from error


def _on_meta(config: PretrainedConfig, options: ModelOptions) -> Policy:
    """The policy as `grpo train` makes it, on the meta device."""
    attention: dict[str, Any] = {}
    if options.attn_implementation is not None:
        attention["attn_implementation"] = options.attn_implementation
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            base = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype), **attention)
        except (ValueError, ImportError) as error:
            raise InputError(f"--model: it cannot be built as a causal LM: {one_line(error)}") from error
        if options.load_in_4bit:
            from grpo.memory import four_bit

            four_bit.quantise(base)
        policy = make_policy(
            base, NO_TOKENIZER, options.lora_r, 2.0 * options.lora_r, options.lora_target_modules,
            use_dora=options.use_dora, gradient_checkpointing=options.gradient_checkpointing,
        )  # fmt: skip
        if options.load_in_4bit:
            four_bit.adapt(policy.model)
    return policy


def _replace_tensors(model: nn.Module) -> None:
    """Tensors of the current mode in place of those on the meta device; what is tied stays tied."""
    made: dict[torch.Tensor, torch.Tensor] = {}

    def fake(tensor: torch.Tensor) -> Any:
        if tensor not in made:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            made[tensor] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
        return made[tensor]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = fake(tensor)
