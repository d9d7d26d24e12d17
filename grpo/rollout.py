"""Sampling: from tasks to completions, with the model's own `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo.batch import pad_left
from grpo.groups import Completion, Task
from grpo.policy import Policy

if TYPE_CHECKING:
    from transformers import GenerationConfig


def sample(
    policy: Policy,
    tasks: Sequence[Task],
    num_generations: int,
    max_completion_length: int,
    temperature: float,
    batch_size: int,
) -> list[list[Completion]]:
    """`num_generations` completions of every task, from softmax(logits / temperature) over all tokens."""
    at_once = max(1, batch_size // num_generations)
    config = _generation_config(policy, max_completion_length, temperature)
    return [
        group for start in range(0, len(tasks), at_once)
        for group in _generate(policy, tasks[start : start + at_once], num_generations, config)
    ]  # fmt: skip


def greedy(policy: Policy, tasks: Sequence[Task], max_completion_length: int, batch_size: int) -> list[Completion]:
    """The most probable token at every step, for every task."""
    config = _generation_config(policy, max_completion_length, None)
    return [
        group[0] for start in range(0, len(tasks), batch_size)
        for group in _generate(policy, tasks[start : start + batch_size], 1, config)
    ]  # fmt: skip


def completion_length(ids: Sequence[int], eos_ids: frozenset[int]) -> tuple[int, bool]:
    """(tokens that were sampled, whether no end-of-sequence token is among them).

    Only the first end-of-sequence token ends a completion; what follows it is padding, whatever its id.
    """
    for position, token in enumerate(ids):
        if token in eos_ids:
            return position + 1, False
    return len(ids), True


def _generation_config(policy: Policy, max_new_tokens: int, temperature: float | None) -> GenerationConfig:
    """Sampling from the whole distribution (`generate` keeps 50 tokens unless told), or greedy if None."""
    from transformers import GenerationConfig

    sampling = {} if temperature is None else {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        do_sample=temperature is not None,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        repetition_penalty=1.0,
        eos_token_id=sorted(policy.eos_ids) or None,
        pad_token_id=policy.pad_id,
        use_cache=True,
        **sampling,
    )


def _generate(policy: Policy, tasks: Sequence[Task], copies: int, config: GenerationConfig) -> list[list[Completion]]:
    import torch

    ids, mask = pad_left([task.prompt_ids for task in tasks], policy.pad_id)
    input_ids = torch.tensor(ids, device=policy.device)
    attention_mask = torch.tensor(mask, device=policy.device)
    rows = torch.arange(len(tasks), device=policy.device).repeat_interleave(copies)
    with torch.no_grad():
        output = policy.model.generate(
            input_ids=input_ids[rows],
            attention_mask=attention_mask[rows],
            generation_config=config,
            **policy.prompt_cache(input_ids, attention_mask, rows),
        )
    sampled = output[:, input_ids.shape[1] :].tolist()
    return [
        [_completion(policy, task, row) for row in sampled[n * copies : (n + 1) * copies]]
        for n, task in enumerate(tasks)
    ]


def _completion(policy: Policy, task: Task, row: list[int]) -> Completion:
    length, truncated = completion_length(row, policy.eos_ids)
    ids = tuple(row[:length])
    text = policy.tokenizer.decode(list(ids), skip_special_tokens=True)
    return Completion(task, ids, str(text), truncated)
