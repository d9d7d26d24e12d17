"""Supervised fine-tuning on prompt/completion token ids: the loss counts completion tokens only.

Small on purpose: it warms up a model before GRPO (see ``grpo.embedded.build``) and works for any transformers causal
LM, with or without a PEFT adapter; only parameters that require a gradient are trained.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo.batch import micro_batches, pad_left, pad_right, positions
from grpo.schedule import SCHEDULES, learning_rate_factor
from grpo_kernels import completion_hidden_states, find_lm_head, linear_token_logps, token_logps


@dataclass(frozen=True)
class SFTExample:
    """Token ids of one example. For a model to learn to stop, ``completion_ids`` ends with the end-of-sequence id."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]

    def __post_init__(self) -> None:
        if not self.prompt_ids or not self.completion_ids:
            raise ValueError("an SFTExample needs at least one prompt token and one completion token")


@dataclass(frozen=True)
class SFTBatch:
    """Prompts padded on the left to P tokens, completions padded on the right to T tokens."""

    input_ids: Tensor  # [B, P + T] int64
    attention_mask: Tensor  # [B, P + T] int64
    position_ids: Tensor  # [B, P + T] int64; 0 at a row's first real token
    completion_ids: Tensor  # [B, T] int64
    completion_mask: Tensor  # [B, T] bool


@dataclass(frozen=True)
class SFTConfig:
    """AdamW with a linear warm-up and then the decay that `lr_scheduler_type` names, to `min_lr_rate` of the peak.

    `micro_batch_size` examples are run at once, all where it is None: the update does not depend on it.
    """

    max_steps: int
    batch_size: int = 32
    micro_batch_size: int | None = None
    learning_rate: float = 1e-4
    lr_scheduler_type: str = "cosine"
    warmup_steps: int = 0
    min_lr_rate: float = 0.1
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "learning_rate", "max_grad_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be greater than 0; got {getattr(self, name)!r}")
        if self.micro_batch_size is not None and not self.micro_batch_size > 0:
            raise ValueError(f"micro_batch_size must be greater than 0; got {self.micro_batch_size!r}")
        for name in ("warmup_steps", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be at least 0; got {getattr(self, name)!r}")
        if not 0 <= self.min_lr_rate <= 1:
            raise ValueError(f"min_lr_rate must be in [0, 1]; got {self.min_lr_rate!r}")
        if self.lr_scheduler_type not in SCHEDULES:
            raise ValueError(f"lr_scheduler_type must be one of {', '.join(SCHEDULES)}; got {self.lr_scheduler_type!r}")


def collate(examples: Sequence[SFTExample], pad_token_id: int, device: torch.device | str = "cpu") -> SFTBatch:
    """Pad examples into one batch. Masks come from lengths: a real token may have the padding id."""
    prompt_ids, prompt_mask = pad_left([example.prompt_ids for example in examples], pad_token_id)
    completion_ids, completion_mask = pad_right([example.completion_ids for example in examples], pad_token_id)
    completions = torch.tensor(completion_ids, device=device)
    mask = torch.tensor(completion_mask, device=device)
    attention_mask = torch.cat((torch.tensor(prompt_mask, device=device), mask), dim=1)
    return SFTBatch(
        input_ids=torch.cat((torch.tensor(prompt_ids, device=device), completions), dim=1),
        attention_mask=attention_mask,
        position_ids=positions(attention_mask),
        completion_ids=completions,
        completion_mask=mask.bool(),
    )


def sft_loss(model: nn.Module, batch: SFTBatch, from_hidden: bool = False) -> Tensor:
    """Mean negative log-probability over the completion tokens of the batch; a differentiable scalar.

    `from_hidden`: go from the hidden states through the head in chunks, without the logits of the batch; for models
    of which `grpo_kernels.matches_model_logits` is true.
    """
    logps = hidden_logps(model, batch) if from_hidden else logits_logps(model, batch)
    return -logps[batch.completion_mask].mean()


def logits_logps(model: nn.Module, batch: SFTBatch) -> Tensor:
    """Log-probabilities [B, T] of the completions from the model's logits."""
    completion_width = batch.completion_ids.shape[1]
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=batch.position_ids,
        use_cache=False,
    ).logits
    # The logits at a position predict the token after it.
    logps = token_logps(logits[:, -completion_width - 1 : -1], batch.completion_ids)
    assert isinstance(logps, Tensor)
    return logps


def hidden_logps(model: nn.Module, batch: SFTBatch) -> Tensor:
    """Log-probabilities [B, T] of the completions from the hidden states; 0 at padding."""
    head = find_lm_head(model)
    hidden = completion_hidden_states(
        model, batch.input_ids, batch.attention_mask, batch.completion_ids.shape[1], position_ids=batch.position_ids
    )
    logps = linear_token_logps(hidden, head.weight, batch.completion_ids, mask=batch.completion_mask, **head.options)
    assert isinstance(logps, Tensor)
    return logps


def shuffled_batches(examples: Sequence[SFTExample], batch_size: int, seed: int) -> Iterator[list[SFTExample]]:
    """Endless batches; every example once per epoch, in a new order each time."""
    if not examples:
        raise ValueError("there are no examples to train on")
    generator = random.Random(seed)
    queue: list[SFTExample] = []
    while True:
        while len(queue) < batch_size:
            queue.extend(generator.sample(examples, len(examples)))
        yield queue[:batch_size]
        del queue[:batch_size]


def train_supervised(
    model: nn.Module,
    examples: Sequence[SFTExample],
    pad_token_id: int,
    config: SFTConfig,
    on_step: Callable[[int, float], bool] | None = None,
    from_hidden: bool = False,
) -> list[float]:
    """Train ``model`` in place, dropout on if it has any, and return the loss of every step.

    ``on_step(steps_done, loss)`` is called after each update; training ends early when it returns True. ``from_hidden``
    as for ``sft_loss``.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError("the model has no parameter that requires a gradient")
    device = parameters[0].device
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: learning_rate_factor(
            config.lr_scheduler_type, step, config.warmup_steps, config.max_steps, config.min_lr_rate
        ),
    )
    losses: list[float] = []
    was_training = model.training
    model.train()
    batches = shuffled_batches(examples, config.batch_size, config.seed)
    for _, chosen in zip(range(config.max_steps), batches, strict=False):
        loss = 0.0
        tokens = sum(len(example.completion_ids) for example in chosen)
        for part in micro_batches(chosen, config.micro_batch_size or len(chosen)):
            batch = collate(part, pad_token_id, device)
            # The mean over a part counts as much as it has tokens.
            part_loss = sft_loss(model, batch, from_hidden) * (int(batch.completion_mask.sum()) / tokens)
            part_loss.backward()
            loss += part_loss.item()
        nn.utils.clip_grad_norm_(parameters, config.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss)
        if on_step is not None and on_step(len(losses), losses[-1]):
            break
    model.train(was_training)
    return losses
