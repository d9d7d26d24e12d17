"""The two phases of a GRPO step on a fake policy: how many bytes are alive, when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo.batch import Batch
from grpo.errors import InputError
from grpo.memory.losses import LOSSES
from grpo.memory.model import FakePolicy
from grpo.policy import CACHE_NAMES
from grpo.rollout import Drawing
from grpo.sampler import Sampling
from grpo_kernels import LMHead, UnsupportedHeadError


@dataclass(frozen=True)
class Sizes:
    """Completions of a pass, how many share a prompt, and the tokens of the longest prompt and completion."""

    completions: int
    num_generations: int
    prompt: int
    completion: int


@dataclass(frozen=True)
class TrainingPeak:
    """Bytes besides weights, adapters, their gradients and the optimizer's state, in the parts of a micro-batch.

    forward: the most during the backbone's forward pass; kept: what it leaves for the backward pass; loss: the most
    from the hidden states to their gradient, besides `kept`; backward: the most during the backbone's backward pass.
    """

    forward: int
    kept: int
    loss: int
    backward: int

    @property
    def total(self) -> int:
        return max(self.forward, self.kept + self.loss, self.backward)


@dataclass(frozen=True)
class RolloutPeak:
    """Bytes besides weights, adapters and the optimizer's state.

    cache: keys and values at the last token; decoding: what its step needs besides; prompt_cache, prefill: the same
    while prompts are run of which no two are the same, as in evaluation.
    """

    cache: int
    decoding: int
    prompt_cache: int
    prefill: int


def training_peaks(
    fake: FakePolicy, sizes: Sizes, losses: Sequence[str], device: str = "cuda"
) -> dict[str, TrainingPeak]:
    """The peak of one micro-batch with each of `losses` (names of `LOSSES`) on "cuda" or "cpu".

    The backbone is run once, forward and backward; each loss in between, from a copy of its hidden states.
    """
    with fake.simulating() as live:
        static = live.now
        batch = _batch(sizes)
        head = _head(fake)
        with fake.policy.learning():
            hidden = fake.policy.hidden_states(batch)
            forward, kept = live.peak - static, live.now - static
            loss_bytes = {}
            for name in losses:
                live.restart()
                states = hidden.detach().requires_grad_()
                LOSSES[name](states, head, device).backward()
                loss_bytes[name] = live.peak - static - kept
                del states
            grad = torch.empty_like(hidden)
            live.restart()
            hidden.backward(grad)
            backward = live.peak - static
        del hidden, grad, batch
    return {name: TrainingPeak(forward, kept, size, backward) for name, size in loss_bytes.items()}


def _head(fake: FakePolicy) -> LMHead:
    try:
        return fake.policy.head()
    except UnsupportedHeadError as error:
        raise InputError(f"--model: this one's loss cannot be simulated: {error}") from error


def rollout_peak(fake: FakePolicy, sizes: Sizes) -> RolloutPeak:
    """The peak of sampling `sizes.completions` at once, and of evaluating as many prompts."""
    policy, count, length = fake.policy, sizes.completions, sizes.prompt + sizes.completion
    with fake.simulating() as live, torch.no_grad():
        static = live.now
        ids = torch.zeros(count, sizes.prompt, dtype=torch.int64)
        output = policy.forward(ids, torch.ones_like(ids), kept=1, use_cache=True)
        most = live.peak - static
        cache_name = next(name for name in CACHE_NAMES if name in output)
        cache = output[cache_name]
        del output, ids
        prompt_cache = live.now - static
        for layer in cache.layers:
            _fill(layer, length - 1)
        size = live.now - static
        live.restart()
        mask = torch.ones(count, length, dtype=torch.int64)
        output = policy.forward(torch.zeros_like(mask), mask, kept=1, cache={cache_name: cache})
        scores = output.logits[:, -1].to(torch.float32, copy=True)
        drawn = torch.softmax(Drawing(torch.ones(count), Sampling())(mask, scores), dim=-1)
        decoding = live.peak - static - size
        del drawn, scores, output, mask, cache, layer
    return RolloutPeak(size, decoding, prompt_cache, most - prompt_cache)


def _fill(layer: object, length: int) -> None:
    """Make the keys and values of a layer's cache those of `length` tokens, or of its window but for the next."""
    window = getattr(layer, "sliding_window", None)
    kept = length if window is None else min(length, window - 1)
    for name in ("keys", "values"):
        states = getattr(layer, name, None)
        if states is None:  # a state whose size does not depend on the length
            return
        batch, heads, _, width = states.shape
        setattr(layer, name, states.new_empty(batch, heads, kept, width))
    if hasattr(layer, "cumulative_length"):
        layer.cumulative_length = length


def _batch(sizes: Sizes) -> Batch:
    prompts = math.ceil(sizes.completions / sizes.num_generations)
    prompt_ids = torch.zeros(prompts, sizes.prompt, dtype=torch.int64)
    completion_ids = torch.zeros(sizes.completions, sizes.completion, dtype=torch.int64)
    return Batch(
        prompt_ids=prompt_ids,
        prompt_mask=torch.ones_like(prompt_ids),
        prompt_rows=torch.zeros(sizes.completions, dtype=torch.int64),
        completion_ids=completion_ids,
        completion_mask=torch.ones_like(completion_ids, dtype=torch.bool),
        advantages=torch.zeros(sizes.completions),
    )
