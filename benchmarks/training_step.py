"""One LoRA training step of a model built from a configuration, with random weights: eager loss against ours.

The forward and backward pass through all layers with activation checkpointing, the loss, and the optimiser's step.
Micro-batches double until memory is over.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_kernels import GRPOLossConfig, completion_hidden_states, find_lm_head, linear_grpo_loss

from .contenders import eager_logps
from .measure import seconds_of

EPSILON = 0.2
ROUNDS = 3


@dataclass(frozen=True)
class ModelShape:
    """A Qwen2 model; the defaults are those of Qwen2.5-1.5B."""

    width: int = 1536
    intermediate: int = 8960
    layers: int = 28
    heads: int = 12
    kv_heads: int = 2
    vocabulary: int = 151936
    dtype: str = "bfloat16"
    prompt: int = 256
    completion: int = 1792
    most_sequences: int = 64


@dataclass(frozen=True)
class StepResult:
    """``out_of_memory``: it did not fit; ``peak_bytes``: by torch's allocator, the model included; None on a CPU."""

    loss: str
    sequences: int
    out_of_memory: bool = False
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak_bytes: int | None = None


def build_model(shape: ModelShape, device: str) -> Any:
    """With LoRA of rank 16 on all linear layers, its gradient checkpointing on."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        hidden_size=shape.width, intermediate_size=shape.intermediate, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, vocab_size=shape.vocabulary,
        max_position_embeddings=shape.prompt + shape.completion, tie_word_embeddings=True,
    )  # fmt: skip
    with torch.device(device):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype))
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def eager_loss(model: Any, ids: Tensor, completion: int, advantages: Tensor) -> Tensor:
    """On-policy: the ratio is 1 and carries the gradient."""
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=completion + 1).logits[:, :-1]
    logps = eager_logps(logits, ids[:, -completion:])
    ratio = torch.exp(logps - logps.detach())
    advantages = advantages.unsqueeze(-1)
    return -torch.min(ratio * advantages, ratio.clamp(1 - EPSILON, 1 + EPSILON) * advantages).mean()


def fused_loss(model: Any, ids: Tensor, completion: int, advantages: Tensor) -> Tensor:
    hidden = completion_hidden_states(model, ids, torch.ones_like(ids), completion)
    head = find_lm_head(model)
    config = GRPOLossConfig(loss_type="dapo", epsilon=EPSILON)
    return linear_grpo_loss(hidden, head.weight, ids[:, -completion:], advantages, **head.options, config=config).loss


LOSSES: dict[str, Callable[..., Tensor]] = {"eager": eager_loss, "ours": fused_loss}


def largest_difference(model: Any, shape: ModelShape, device: str) -> float:
    """Between the two losses' gradients of one sequence: the norm of the difference over the norm of eager's."""
    ids, advantages = batch(shape, 1, device)
    gradients = []
    for loss in LOSSES.values():
        model.zero_grad()
        loss(model, ids, shape.completion, advantages).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).float())
    model.zero_grad()
    return ((gradients[0] - gradients[1]).norm() / gradients[0].norm()).item()


def batch(shape: ModelShape, sequences: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(sequences)
    ids = torch.randint(shape.vocabulary, (sequences, shape.prompt + shape.completion), generator=generator)
    advantages = torch.linspace(-1.0, 1.0, sequences) if sequences > 1 else torch.ones(1)
    return ids.to(device), advantages.to(device)


def measure_step(name: str, model: Any, optimizer: Any, shape: ModelShape, sequences: int, device: str) -> StepResult:
    ids, advantages = batch(shape, sequences, device)
    is_cuda = device == "cuda"

    def step() -> None:
        LOSSES[name](model, ids, shape.completion, advantages).backward()
        optimizer.step()
        optimizer.zero_grad()

    try:
        if is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated() if is_cuda else None
        seconds = statistics.median(seconds_of(step, torch.device(device)) for _ in range(ROUNDS))
    except torch.OutOfMemoryError:
        optimizer.zero_grad()
        return StepResult(name, sequences, out_of_memory=True)
    return StepResult(name, sequences, False, seconds, ids.numel() / seconds, peak)


def measure_steps(
    model: Any, shape: ModelShape, device: str, has_time: Callable[[], bool] = lambda: True
) -> list[StepResult]:
    """Both losses, interleaved, at 1, 2, 4 ... sequences; each until it does not fit or the time is over."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)
    results: list[StepResult] = []
    fits = dict.fromkeys(LOSSES, True)
    sequences = 1
    while sequences <= shape.most_sequences and any(fits.values()) and has_time():
        for name in LOSSES:
            if fits[name]:
                results.append(measure_step(name, model, optimizer, shape, sequences, device))
                fits[name] = not results[-1].out_of_memory
        sequences *= 2
    return results
