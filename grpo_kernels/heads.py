"""What the head of a Hugging Face causal LM is, plain or PEFT-wrapped, and the hidden states in front of it.

Models are known by their attributes and configuration alone: neither transformers nor PEFT is imported.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .checks import LOGITS_DTYPES

# Names, in configurations, of what a model does to the product of its head.
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
LOGIT_MULTIPLIERS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
LOGIT_DIVISORS = ("logits_scaling",)
# Models that multiply with what the others of that name divide by.
MULTIPLYING_TYPES = ("hyperclovax",)

PROBE_TOKENS = 8
PROBE_PEAK = 100.0  # large enough for any soft-cap in use to show
PROBE_TOLERANCE = 1e-3  # of the largest logit; half precision gets more. A forgotten scale or cap is far beyond it.

INSTEAD = "or pass the model's logits to grpo_loss"


class UnsupportedHeadError(ValueError):
    """The logits of a model cannot be computed from a plain head; the message names what is in the way."""


@dataclass(frozen=True, eq=False)
class LMHead:
    """A head: ``logits = softcap(logit_scale * (hidden @ weight.T + bias))``.

    Attributes:
        weight: [V, D], the model's own tensor: tied, trainable or frozen as it is there. Of a head that is sharded, and
            frozen, all of it, gathered.
        bias: [V] or None.
        softcap: ``c`` of ``c * tanh(x / c)``, or None.
        logit_scale: what the product is multiplied with.
    """

    weight: Tensor
    bias: Tensor | None = None
    softcap: float | None = None
    logit_scale: float = 1.0

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``linear_grpo_loss`` and ``linear_token_logps`` that go with the weight."""
        return {"bias": self.bias, "softcap": self.softcap, "logit_scale": self.logit_scale}


def find_lm_head(model: nn.Module) -> LMHead:
    """The head of a causal LM, as it is used now: of ``modules_to_save`` the active copy, if adapters are on.

    Cheap: call it for every pass. Only a head that FSDP2 shards, as it does where ``fully_shard`` is called on the
    whole model, costs something: it has to be frozen, and every call gathers it, on every rank (V D numbers received,
    held as long as the result is; what the model's last forward pass left gathered around it is freed). Leave it out
    of the sharding if it fits. That an architecture does nothing else to its logits is a matter for
    ``matches_model_logits``, once.

    Args:
        model: a transformers causal LM, or one wrapped by PEFT; its base may be quantised, its head may not.

    Raises:
        UnsupportedHeadError: a ValueError. The head carries an adapter, is quantised, sharded and trainable, offloaded
            or no plain ``torch.nn.Linear``, or the model adds prompt tokens of its own; the message names the module.
    """
    module = _checked_head(model)
    softcap, logit_scale = _logit_options(getattr(causal_lm(model), "config", None))
    return LMHead(_whole(module.weight), _whole(module.bias), softcap, logit_scale)


def completion_hidden_states(
    model: nn.Module,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_length: int,
    *,
    position_ids: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The hidden states that predict the last ``completion_length`` tokens: no logits are computed.

    The backbone runs with whatever adapters are active, dropout and gradient checkpointing as the model has them.
    The last token predicts nothing that is wanted and is not run.

    Modules around the backbone that FSDP2 shards (the whole model, if ``fully_shard`` was called on it) gather and free
    their parameters as for a forward pass of theirs; nothing has to be registered. FSDP2 takes the first module that
    runs for its root: the outermost one is it here, too, so that this and the model's own forward may alternate.

    Args:
        model: as for ``find_lm_head``.
        input_ids: [B, S], S > T: prompt and completion. With a cache among the options, only the tokens that are not
            in it, the last T + 1 or more of them.
        attention_mask: [B, all tokens], 1 on real ones, those in the cache included.
        completion_length: T.
        position_ids: [B, S], or None: counted from each row's first real token.
        options: passed to the backbone, such as ``past_key_values=`` and ``use_cache=`` (default: off).

    Returns:
        [B, T, D], in the dtype of the head's weight: ready for ``linear_grpo_loss`` and ``linear_token_logps``.

    Raises:
        UnsupportedHeadError: as ``find_lm_head``, or the model has no backbone of its own.
        ValueError: the completion does not fit into the ids.
    """
    if not 1 <= completion_length < input_ids.shape[1]:
        raise ValueError(
            f"completion_length is {completion_length}; allowed: 1 to {input_ids.shape[1] - 1}, "
            "one less than the tokens of input_ids: each is predicted by the one before it"
        )
    dtype = _checked_head(model).weight.dtype
    if position_ids is None:
        position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
    backbone = _backbone(causal_lm(model))
    if "position_ids" in inspect.signature(backbone.forward).parameters:
        options["position_ids"] = position_ids[:, :-1]
    options.setdefault("use_cache", False)
    options.update(input_ids=input_ids[:, :-1], attention_mask=attention_mask[:, :-1])
    hidden = _last_hidden_state(model, backbone, options)
    if hidden.shape[1] != completion_length:
        hidden = hidden[:, -completion_length:]
    return hidden.to(dtype)


@torch.no_grad()
def matches_model_logits(model: nn.Module) -> bool:
    """Whether the model's own logits are those of its head, as ``find_lm_head`` understands it.

    Two forward passes over a few tokens: what an architecture does between backbone and logits (a norm, a scale, a
    cut vocabulary) is found without knowing it. The products are amplified on the way, so that a soft-cap shows
    whatever the weights are. Call it once before training a model that is not known; adapters stay as they are.

    Raises:
        UnsupportedHeadError: as ``completion_hidden_states``.
    """
    head = find_lm_head(model)
    base = causal_lm(model)
    _, module = _head_module(base)
    device = base.get_input_embeddings().weight.device
    ids = torch.arange(1, PROBE_TOKENS + 1, device=device)[None] % head.weight.shape[0]
    mask = torch.ones_like(ids)
    with _evaluating(base):
        # One token more, because the last is not run.
        longer = torch.cat((ids, ids[:, :1]), dim=1)
        hidden = completion_hidden_states(model, longer, torch.ones_like(longer), ids.shape[1])
        product = nn.functional.linear(hidden.to(head.weight.device), head.weight, head.bias).float()
        peak = product.abs().max().item()
        factor = PROBE_PEAK / peak if 0 < peak < math.inf else 1.0
        hook = module.register_forward_hook(lambda _module, _inputs, output: output * factor)
        try:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        finally:
            hook.remove()
    expected = head.logit_scale * factor * product
    if head.softcap is not None:
        expected = head.softcap * torch.tanh(expected / head.softcap)
    if logits.shape != expected.shape:
        return False
    rounding = max(torch.finfo(dtype).eps for dtype in (head.weight.dtype, logits.dtype))
    tolerance = max(PROBE_TOLERANCE, 8 * rounding) * expected.abs().max().item()
    return torch.allclose(logits.float().to(expected.device), expected, rtol=0.0, atol=tolerance, equal_nan=True)


def causal_lm(model: nn.Module) -> Any:
    """The causal LM inside a PEFT wrapper, its adapter layers in place; a model that is not wrapped, itself.

    Raises:
        UnsupportedHeadError: adapters that act outside the layers, in the wrapper: prompt and prefix tuning.
    """
    get_base_model = getattr(model, "get_base_model", None)
    if get_base_model is None:
        return model
    adapter = getattr(model, "active_peft_config", None)
    if getattr(adapter, "is_prompt_learning", False):
        raise UnsupportedHeadError(
            f"{type(adapter).__name__} adds prompt tokens in {type(model).__name__}.forward, which the backbone alone "
            f"would miss: use LoRA, {INSTEAD}"
        )
    return get_base_model()


def _head_module(base: Any) -> tuple[str, nn.Linear]:
    """The name of the head and the plain linear layer that it is now."""
    get_output_embeddings = getattr(base, "get_output_embeddings", None)
    module = None if get_output_embeddings is None else get_output_embeddings()
    if module is None:
        raise UnsupportedHeadError(
            f"{type(base).__name__} has no get_output_embeddings() that returns its head: "
            f"pass the transformers or PEFT model itself, {INSTEAD}"
        )
    name = next((name for name, other in base.named_modules() if other is module), "lm_head")
    module = _active_copy(module)
    if hasattr(module, "base_layer") or hasattr(module, "original_module"):
        raise UnsupportedHeadError(
            f"{name} carries a PEFT adapter ({type(module).__module__}.{type(module).__name__}): take it out of "
            f"target_modules (modules_to_save trains it whole), {INSTEAD}"
        )
    if not isinstance(module, nn.Linear):
        raise UnsupportedHeadError(f"{name} is a {type(module).__name__}, not a torch.nn.Linear: replace it, {INSTEAD}")
    if type(module).forward is not nn.Linear.forward:
        raise UnsupportedHeadError(
            f"{name} is a {type(module).__name__}, which computes its product in a way of its own (quantised layers "
            f"do): keep it out of the quantisation, {INSTEAD}"
        )
    return name, module


def _active_copy(module: Any) -> Any:
    """Of a head in ``modules_to_save`` what its forward calls: the active adapter's copy, or the original."""
    copies = getattr(module, "modules_to_save", None)
    if not isinstance(copies, nn.ModuleDict):
        return module
    active = module.active_adapters
    if module.disable_adapters or not active or any(adapter not in copies for adapter in active):
        return module.original_module
    return copies[active[0]]


def _checked_head(model: nn.Module) -> nn.Linear:
    """The head's layer, whose weight and bias are usable, once they are whole."""
    name, module = _head_module(causal_lm(model))
    if not hasattr(module.weight, "full_tensor"):
        # What FSDP2 has gathered for a forward pass it frees when it chooses.
        for outer in _sharded_around(model, module):
            outer.reshard()
    for part, tensor in (("weight", module.weight), ("bias", module.bias)):
        if hasattr(tensor, "full_tensor") and tensor.requires_grad:
            raise UnsupportedHeadError(
                f"{name}.{part} is a DTensor, of which this rank holds a shard, and trainable: freeze it, leave {name} "
                f"out of the sharding (fully_shard the layers and the backbone, not the whole model), {INSTEAD}"
            )
    _check_weight(name, module.weight)
    return module


def _whole(tensor: Any) -> Any:
    """A tensor with all its shards, wherever they are."""
    return tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _sharded_around(model: nn.Module, inner: nn.Module) -> list[Any]:
    """The modules that FSDP2 has sharded and ``inner`` is a part of, the outermost first."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return []
    from torch.distributed.fsdp import FSDPModule

    return [
        module for module in model.modules()
        if isinstance(module, FSDPModule) and module is not inner and any(part is inner for part in module.modules())
    ]  # fmt: skip


def _last_hidden_state(model: nn.Module, backbone: nn.Module, options: dict[str, Any]) -> Tensor:
    """What the backbone ends in, run inside the modules around it that FSDP2 shards."""

    def run() -> Tensor:
        return backbone(**options).last_hidden_state

    for outer in reversed(_sharded_around(model, backbone)):
        run = _as_forward_of(outer, run)
    return run()


def _as_forward_of(module: Any, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The function between what FSDP2 does before and after a forward pass of the module."""
    from torch.distributed.fsdp import register_fsdp_forward_method

    name = "_grpo_kernels_forward"
    setattr(module, name, function)
    try:
        register_fsdp_forward_method(module, name)
        return getattr(module, name)
    finally:
        delattr(module, name)


def _check_weight(name: str, weight: Tensor) -> None:
    """A dense [V, D] of floating point numbers, whole or sharded as a DTensor."""
    if weight.numel() == 0 or weight.dim() != 2:
        raise UnsupportedHeadError(
            f"{name}.weight has shape {list(weight.shape)} here, a shard of a partitioned weight: gather it around "
            f"the forward and backward pass, {INSTEAD}"
        )
    if weight.is_meta:
        raise UnsupportedHeadError(f"{name}.weight is on the meta device (offloaded): keep it on a device, {INSTEAD}")
    is_sharded = hasattr(weight, "full_tensor")
    if weight.dtype not in LOGITS_DTYPES or (is_traceable_wrapper_subclass(weight) and not is_sharded):
        raise UnsupportedHeadError(
            f"{name}.weight is a quantised {type(weight).__name__} of {weight.dtype}: keep it out of the "
            f"quantisation, {INSTEAD}"
        )


def _logit_options(config: Any) -> tuple[float | None, float]:
    """(softcap, logit_scale) of a model's configuration, or of its text part."""
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()

    def numbers(names: tuple[str, ...]) -> list[float]:
        found = (getattr(config, name, None) for name in names)
        return [float(value) for value in found if isinstance(value, (int, float))]

    softcap = next(iter(numbers(SOFTCAPS)), None)
    divisor = math.prod(numbers(LOGIT_DIVISORS))
    if getattr(config, "model_type", None) in MULTIPLYING_TYPES:
        divisor = 1.0 / divisor
    return softcap, math.prod(numbers(LOGIT_MULTIPLIERS)) / divisor


def _backbone(base: Any) -> nn.Module:
    """The part of a causal LM that ends in the hidden states before the head."""
    config = getattr(base, "config", None)
    get_decoder = getattr(base, "get_decoder", None)
    backbone = getattr(base, "base_model", base) if get_decoder is None else get_decoder()
    if backbone is base or backbone is None or getattr(config, "is_encoder_decoder", False):
        raise UnsupportedHeadError(
            f"{type(base).__name__} has no decoder-only backbone that get_decoder() returns: "
            "pass the model's logits to grpo_loss"
        )
    return backbone


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout inside; every module's mode is put back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
