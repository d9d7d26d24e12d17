"""Linear layers in 4 bits, as bitsandbytes holds and multiplies them, without bitsandbytes."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor, nn
from torch.nn import functional as F

from grpo.errors import InputError

BLOCK = 64  # weights that share an absmax
NESTED_BLOCK = 256  # absmaxes, a byte each, that share a float32 one (double quantisation)


class FourBitLinear(nn.Linear):
    """A layer of nf4 weights: half a byte each, and a byte and a bit for every 64 of them."""

    def __init__(self, layer: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        count, device = layer.weight.numel(), layer.weight.device
        blocks = math.ceil(count / BLOCK)
        packed = torch.empty(math.ceil(count / 2), 1, dtype=torch.uint8, device=device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.register_buffer("absmax", torch.empty(blocks, dtype=torch.uint8, device=device))
        self.register_buffer("nested_absmax", torch.empty(math.ceil(blocks / NESTED_BLOCK), device=device))

    def forward(self, input: Tensor) -> Tensor:
        return _Product.apply(input, self.weight, self.bias, (self.out_features, self.in_features))


class _Product(torch.autograd.Function):
    """The weight is dequantised for every product, also for that of the gradient."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> Tensor:
        ctx.shape = shape
        return F.linear(input, _dequantised(input, shape), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] @ _dequantised(grads[0], ctx.shape), None, None, None


def _dequantised(like: Tensor, shape: tuple[int, int]) -> Tensor:
    absmax = torch.empty(math.ceil(math.prod(shape) / BLOCK))
    weight = torch.empty(shape, dtype=like.dtype)
    del absmax
    return weight


def quantise(model: Any) -> None:
    """Put 4-bit layers in the place of all linear ones but the head. Raises InputError where there are none."""
    head = model.get_output_embeddings()
    layers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and child is not head
    ]
    if not layers:
        raise InputError(f"--load-in-4bit: {type(model).__name__} has no linear layers; leave it out")
    for parent, name, child in layers:
        setattr(parent, name, FourBitLinear(child))


def adapt(model: nn.Module) -> None:
    """Let the adapters on 4-bit layers compute as PEFT's own for them do, which convert what they add."""
    for module in model.modules():
        if isinstance(module, LoraLinear) and isinstance(module.base_layer, FourBitLinear):
            module.forward = functools.partial(_forward, module)


def _forward(layer: Any, x: Tensor) -> Tensor:
    """`peft.tuners.lora.bnb.Linear4bit.forward`, for plain LoRA."""
    result = layer.base_layer(x).clone()
    for name in layer.active_adapters if not layer.disable_adapters else ():
        lora_a, lora_b, dropout = (part[name] for part in (layer.lora_A, layer.lora_B, layer.lora_dropout))
        added = lora_b(lora_a(dropout(x.to(lora_a.weight.dtype)))) * layer.scaling[name]
        result = result + added.to(result.dtype)
    return result
