"""What the public functions accept. Every refusal names the argument, what it was and what is allowed."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .config import GRPOLossConfig

LOGITS_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ID_DTYPES = (torch.int64, torch.int32)


def check_logits_and_ids(
    logits: Tensor, ids: Tensor, ids_name: str, name: str = "logits", width: str = "V", packed: bool = False
) -> None:
    """Shapes, dtypes and devices of [B, T, V] logits (or [B, T, D] states) and [B, T] ids; [N, V] and [N] if packed."""
    _check_tensor(name, logits, LOGITS_DTYPES)
    rows = "N" if packed else "B, T"
    if logits.dim() != (2 if packed else 3) or logits.shape[-1] == 0:
        raise ValueError(f"{name} has shape {_shape(logits)}; allowed: [{rows}, {width}] with {width} >= 1")
    _check_tensor(ids_name, ids, ID_DTYPES)
    _check_shape(ids_name, ids, [logits.shape[:-1]], f"[{rows}] of {name}")
    _check_device(ids_name, ids, logits)


class TokenArguments(NamedTuple):
    """What a loss takes for the tokens, as the caller gives it."""

    ids: Tensor
    advantages: Tensor
    mask: Tensor | None
    old_logps: Tensor | None
    ref_logps: Tensor | None
    token_weights: Tensor | None
    temperatures: Tensor | None = None


def check_loss_arguments(
    given: TokenArguments,
    num_items_in_batch: Tensor | float | None,
    config: GRPOLossConfig,
    has_reference: bool,
    cu_seqlens: Tensor | None,
) -> None:
    """Types, shapes and devices of everything else a loss takes, beside ids that are checked."""
    if not isinstance(config, GRPOLossConfig):
        raise TypeError(f"config is {type(config).__name__}; allowed: GRPOLossConfig")
    per_token, symbol = tuple(given.ids.shape), "[B, T]" if cu_seqlens is None else "[N]"
    batch = per_token[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    per_sequence = (batch, 1)
    shapes = {
        "advantages": ([(batch,), per_sequence, per_token], f"[B], [B, 1] or {symbol}"),
        "completion_mask": ([per_token], f"{symbol} of the ids"),
        "old_logps": ([per_token], f"{symbol} of the ids"),
        "ref_logps": ([per_token], f"{symbol} of the ids"),
        "token_weights": ([per_sequence, per_token], f"{symbol} or [B, 1]"),
        "temperatures": ([(batch,), per_sequence], "[B] or [B, 1]"),
    }
    for (name, (allowed, words)), tensor in zip(shapes.items(), given[1:], strict=True):
        if tensor is None and name != "advantages":
            continue
        _check_tensor(name, tensor, None)
        assert tensor is not None
        _check_shape(name, tensor, allowed, words)
        _check_device(name, tensor, given.ids)
    if config.beta != 0.0 and not has_reference:
        raise ValueError(f"ref_logps is None, but beta is {config.beta}: pass the reference's [B, T] log-probabilities")
    if isinstance(num_items_in_batch, Tensor):
        if num_items_in_batch.numel() != 1:
            raise ValueError(f"num_items_in_batch has shape {_shape(num_items_in_batch)}; allowed: one number")
    elif num_items_in_batch is not None and not (
        isinstance(num_items_in_batch, (int, float))
        and not isinstance(num_items_in_batch, bool)
        and 0 < num_items_in_batch <= sys.float_info.max
    ):
        raise ValueError(f"num_items_in_batch is {num_items_in_batch!r}; allowed: a number > 0, or None")


def check_cu_seqlens(cu_seqlens: Tensor, max_seqlen: int | None, ids: Tensor) -> int:
    """Offsets of packed sequences; returns the length of the longest, or ``max_seqlen``."""
    _check_tensor("cu_seqlens", cu_seqlens, ID_DTYPES)
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(f"cu_seqlens has shape {_shape(cu_seqlens)}; allowed: [B + 1] with B >= 1")
    _check_device("cu_seqlens", cu_seqlens, ids)
    if max_seqlen is not None and (isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int) or max_seqlen < 1):
        raise ValueError(f"max_seqlen is {max_seqlen!r}; allowed: a whole number >= 1, or None")
    if torch.compiler.is_compiling() or isinstance(cu_seqlens, FakeTensor):
        if max_seqlen is None:
            raise ValueError("max_seqlen is None; allowed under torch.compile: the length of the longest sequence")
        return max_seqlen
    lengths = cu_seqlens.diff()
    first, last, shortest, longest = torch.stack((cu_seqlens[0], cu_seqlens[-1], lengths.min(), lengths.max())).tolist()
    if first != 0 or last != ids.shape[0] or shortest < 0:
        raise ValueError(
            f"cu_seqlens goes from {first} to {last}{' and decreases' if shortest < 0 else ''}; "
            f"allowed: from 0 to {ids.shape[0]} (the number of tokens), not decreasing"
        )
    if max_seqlen is not None and max_seqlen < longest:
        raise ValueError(f"max_seqlen is {max_seqlen}; allowed: at least {longest}, the longest sequence of cu_seqlens")
    return max(longest, 1) if max_seqlen is None else max_seqlen


def check_values(
    ids: Tensor,
    ids_name: str,
    vocabulary: int,
    mask: Tensor | None = None,
    advantages: Tensor | None = None,
    num_items_in_batch: Tensor | float | None = None,
    temperatures: Tensor | None = None,
) -> None:
    """Ids of active tokens lie in the vocabulary, advantages are finite, a mask is 0 or 1, numbers are positive.

    It costs one transfer of a few numbers from the device, and is left out where values cannot be read: while
    compiling, with fake tensors, and while a CUDA graph is captured.
    """
    if torch.compiler.is_compiling() or isinstance(ids, FakeTensor) or ids.is_meta or ids.numel() == 0:
        return
    if ids.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    kept = ids if mask is None else ids.masked_fill(mask == 0, 0)
    low, high = (value.float() for value in torch.aminmax(kept))
    fine = torch.ones_like(low)
    finite, binary, count, warm = fine, fine, fine, fine
    if advantages is not None:
        finite = torch.isfinite(advantages).all().float()
    if mask is not None and mask.dtype != torch.bool:
        binary = ((mask == 0) | (mask == 1)).all().float()
    if isinstance(num_items_in_batch, Tensor):
        count = num_items_in_batch.float()
    if temperatures is not None:
        warm = _are_temperatures(temperatures).all().float()
    numbers = torch.stack((low, high, finite, binary, count, warm)).tolist()
    lowest, highest, is_finite, is_binary, items, is_warm = numbers
    if lowest < 0 or highest >= vocabulary:
        worst = int(lowest if lowest < 0 else highest)
        raise ValueError(f"{ids_name} holds {worst}; allowed: 0 to {vocabulary - 1} (the size of the vocabulary - 1)")
    if not is_finite:
        assert advantages is not None
        bad = advantages[~torch.isfinite(advantages)].flatten()[0].item()
        raise ValueError(f"advantages holds {bad}; allowed: finite numbers")
    if not is_binary:
        assert mask is not None
        bad = mask[(mask != 0) & (mask != 1)].flatten()[0].item()
        raise ValueError(f"completion_mask holds {bad}; allowed: 0 and 1, or bool")
    if not 0 < items < math.inf:
        raise ValueError(f"num_items_in_batch is {items}; allowed: a number > 0")
    if not is_warm:
        assert temperatures is not None
        cold = temperatures[~_are_temperatures(temperatures)].flatten()[0].item()
        raise ValueError(f"temperatures holds {cold}; allowed: finite numbers > 0 (at least 1e-6)")


def check_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    logit_scale: float,
    chunk_bytes: int | None,
    round_logits: bool,
    is_shard: bool = False,
) -> None:
    """Shapes, dtypes and devices of an lm_head, and its options. Whether a shard is empty is for all ranks to find."""
    _check_tensor("hidden", hidden, LOGITS_DTYPES)
    _check_tensor("weight", weight, (hidden.dtype,))
    if weight.dim() != 2 or (weight.shape[0] == 0 and not is_shard) or weight.shape[1] != hidden.shape[-1]:
        raise ValueError(f"weight has shape {_shape(weight)}; allowed: [V, D], here [V >= 1, {hidden.shape[-1]}]")
    _check_device("weight", weight, hidden)
    if bias is not None:
        _check_tensor("bias", bias, LOGITS_DTYPES)
        _check_shape("bias", bias, [weight.shape[:1]], "[V] of the weight")
        _check_device("bias", bias, hidden)
    for name, value in (("softcap", softcap), ("logit_scale", logit_scale)):
        if value is None and name == "softcap":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is {value!r} ({type(value).__name__}); allowed: a number > 0")
        if not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; allowed: a finite number > 0")
    if chunk_bytes is not None and (isinstance(chunk_bytes, bool) or not isinstance(chunk_bytes, int)):
        raise TypeError(f"chunk_bytes is {chunk_bytes!r} ({type(chunk_bytes).__name__}); allowed: a whole number >= 1")
    if not isinstance(round_logits, bool):
        raise TypeError(f"round_logits is {round_logits!r}; allowed: True, False")
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ValueError(f"chunk_bytes is {chunk_bytes!r}; allowed: a whole number >= 1, or None")


def check_ref_hidden(ref_hidden: Tensor, hidden: Tensor, ref_logps: Tensor | None) -> None:
    """The reference's hidden states are like the policy's, and the only source of its log-probabilities."""
    _check_tensor("ref_hidden", ref_hidden, (hidden.dtype,))
    _check_shape("ref_hidden", ref_hidden, [hidden.shape], "the shape of hidden")
    _check_device("ref_hidden", ref_hidden, hidden)
    if ref_logps is not None:
        raise ValueError("ref_logps and ref_hidden are both given; allowed: one of them")


def check_temperature(temperature: float | Tensor, ids: Tensor) -> None:
    """A finite number above 0; or a tensor of them for ids [B, T] or [N], whose values ``check_values`` looks at."""
    if not isinstance(temperature, Tensor):
        GRPOLossConfig(temperature=temperature)
        return
    _check_tensor("temperature", temperature, LOGITS_DTYPES)
    batch = (ids.shape[0],)
    shapes = [batch] if ids.dim() == 1 else [batch, (*batch, 1), tuple(ids.shape)]
    _check_shape("temperature", temperature, shapes, "a number, or one for each sequence or token of the ids")
    _check_device("temperature", temperature, ids)


def _are_temperatures(values: Tensor) -> Tensor:
    return (values >= 1e-6) & (values < math.inf)


def _check_tensor(name: str, value: object, dtypes: tuple[torch.dtype, ...] | None) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} is {type(value).__name__}; allowed: a tensor")
    if dtypes is not None and value.dtype not in dtypes:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} is {value.dtype}; allowed: {allowed}")
    if value.dtype.is_complex:
        raise TypeError(f"{name} is {value.dtype}; allowed: real numbers")


def _check_shape(name: str, tensor: Tensor, shapes: list, allowed: str) -> None:
    if tuple(tensor.shape) not in [tuple(shape) for shape in shapes]:
        expected = " or ".join(dict.fromkeys(str(list(shape)) for shape in shapes))
        raise ValueError(f"{name} has shape {_shape(tensor)}; allowed: {allowed}, here {expected}")


def _check_device(name: str, tensor: Tensor, logits: Tensor) -> None:
    if tensor.device != logits.device:
        raise ValueError(f"{name} is on {tensor.device}; allowed: {logits.device}, where the logits are")


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
