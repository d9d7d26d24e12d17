"""Sampling: from tasks to completions, with the model's own `generate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo import processes
from grpo.batch import pad_left
from grpo.groups import Completion, Done, Task
from grpo.policy import Policy
from grpo.sampler import Sampling, support

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig


def sample(
    policy: Policy,
    tasks: Sequence[Task],
    temperatures: Sequence[float],
    max_completion_length: int,
    batch_size: int,
    sampling: Sampling | None = None,
    done: Done | None = None,
) -> list[list[Completion]]:
    """A completion of every task at each of `temperatures`, with the log-probabilities of its tokens.

    Tokens are drawn from softmax(logits / temperature), or from what `sampling` leaves of it (its own temperature is
    not used). At most `batch_size` sequences run at once, but at least one group. `done` is called with each group,
    in the order of the tasks, as soon as it is complete.
    """
    at_once = max(1, batch_size // len(temperatures))
    config = _generation_config(policy, max_completion_length, is_greedy=False)
    groups = []
    for part in _parts(policy, tasks, at_once):
        for group in _generate(policy, part, temperatures, config, sampling or Sampling()):
            groups.append(group)
            if done is not None:
                done(group)
    return groups


def greedy(policy: Policy, tasks: Sequence[Task], max_completion_length: int, batch_size: int) -> list[Completion]:
    """The most probable token at every step, for every task."""
    config = _generation_config(policy, max_completion_length, is_greedy=True)
    return [
        group[0] for part in _parts(policy, tasks, batch_size)
        for group in _generate(policy, part, (1.0,), config, None)
    ]  # fmt: skip


def completion_length(ids: Sequence[int], eos_ids: frozenset[int]) -> tuple[int, bool]:
    """(tokens that were sampled, whether no end-of-sequence token is among them).

    Only the first end-of-sequence token ends a completion; what follows it is padding, whatever its id.
    """
    for position, token in enumerate(ids):
        if token in eos_ids:
            return position + 1, False
    return len(ids), True


class Drawing:
    """A logits processor for `generate`: temperatures by row, the tokens that may be drawn, and the log-probabilities
    of those that were. Of the scores only those of the latest step are kept."""

    def __init__(self, temperatures: torch.Tensor, sampling: Sampling) -> None:
        self.temperatures = temperatures  # [B]
        self.sampling = Sampling(1.0, sampling.top_p, sampling.top_k, sampling.min_p)
        self.logps: list[torch.Tensor] = []  # [B] a step
        self._latest: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.note(input_ids)
        scores = scores / self.temperatures[:, None]
        if self.sampling.is_restricted:
            scores = scores.masked_fill(~support(scores, self.sampling), -math.inf)
        self._latest = scores, scores.logsumexp(-1)
        return scores

    def note(self, ids: torch.Tensor) -> None:
        """The last of the ids [B, S] were drawn from the latest scores."""
        if self._latest is not None:
            scores, total = self._latest
            self.logps.append(scores.gather(-1, ids[:, -1:]).squeeze(-1) - total)
            self._latest = None


def _generation_config(policy: Policy, max_new_tokens: int, is_greedy: bool) -> GenerationConfig:
    """What `Drawing` does, `generate` is told to leave: it keeps 50 tokens unless told."""
    from transformers import GenerationConfig

    sampling: dict[str, Any] = {} if is_greedy else {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return GenerationConfig(
        do_sample=not is_greedy,
        num_beams=1,
        max_new_tokens=max_new_tokens,
        repetition_penalty=1.0,
        eos_token_id=sorted(policy.eos_ids) or None,
        pad_token_id=policy.pad_id,
        use_cache=True,
        **sampling,
    )


def _parts(policy: Policy, tasks: Sequence[Task], at_once: int) -> list[Sequence[Task]]:
    """The tasks in parts of at most `at_once`. A pass of a sharded model needs every process: those with fewer parts
    have empty ones at the end."""
    parts = [tasks[start : start + at_once] for start in range(0, len(tasks), at_once)]
    missing = processes.largest(len(parts)) - len(parts) if policy.is_sharded else 0
    return [*parts, *[()] * missing]


def _generate(
    policy: Policy,
    tasks: Sequence[Task],
    temperatures: Sequence[float],
    config: GenerationConfig,
    sampling: Sampling | None,
) -> list[list[Completion]]:
    """Without `sampling` it is greedy, and `temperatures` is the one 1. Without tasks something is run all the same."""
    import torch

    copies = len(temperatures)
    prompts = [task.prompt_ids for task in tasks] or [(policy.pad_id,)]
    ids, mask = pad_left(prompts, policy.pad_id)
    input_ids = torch.tensor(ids, device=policy.device)
    attention_mask = torch.tensor(mask, device=policy.device)
    rows = torch.arange(len(prompts), device=policy.device).repeat_interleave(copies)
    by_row = torch.tensor(temperatures, dtype=torch.float32, device=policy.device).repeat(len(prompts))
    drawing = Drawing(by_row, sampling) if sampling else None
    with torch.no_grad(), policy.evaluating():
        output = policy.model.generate(
            input_ids=input_ids[rows],
            attention_mask=attention_mask[rows],
            generation_config=config,
            logits_processor=[drawing] if drawing else None,
            synced_gpus=policy.is_sharded,
            **policy.prompt_cache(input_ids, attention_mask, rows),
        )
    sampled = output[:, input_ids.shape[1] :].tolist()
    logps: list[list[float]] | None = None
    if drawing is not None:
        drawing.note(output)
        logps = torch.stack(drawing.logps, dim=1).tolist()
    return [
        [
            _completion(policy, task, sampled[row], temperature, logps[row] if logps else None)
            for row, temperature in enumerate(temperatures, n * copies)
        ]
        for n, task in enumerate(tasks)
    ]


def _completion(
    policy: Policy, task: Task, row: list[int], temperature: float, logps: Sequence[float] | None
) -> Completion:
    length, truncated = completion_length(row, policy.eos_ids)
    ids = tuple(row[:length])
    text = policy.tokenizer.decode(list(ids), skip_special_tokens=True)
    return Completion(task, ids, str(text), truncated, temperature, None if logps is None else tuple(logps[:length]))
