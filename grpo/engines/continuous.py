"""transformers' continuous batching: sequences leave the batch when they end, and the next ones take their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo.errors import InputError
from grpo.groups import Completion, Done, Task
from grpo.merging import merged_if
from grpo.policy import Policy
from grpo.rollout import completion_length
from grpo.sampler import Sampling

# On a GPU the library chooses by free memory; without one it needs numbers.
CPU_MEMORY = {"num_blocks": 256, "max_batch_tokens": 512}
REQUEST = re.compile(r"req_(\d+)")


class ContinuousEngine:
    """Of each prompt the cache is shared by its completions where the library can. `merge` as for `grpo.merging`."""

    def __init__(self, merge: bool | None = None) -> None:
        self.merge = merge

    def generate(
        self,
        policy: Policy,
        tasks: Sequence[Task],
        temperatures: Sequence[float],
        sampling: Sampling,
        max_completion_length: int,
        batch_size: int,
        done: Done | None = None,
    ) -> list[list[Completion]]:
        """As for `Engine`; the library decides what runs at once, so that `batch_size` is not used."""
        if policy.is_sharded:
            raise InputError("--engine continuous cannot run a model that --fsdp shards: give --engine transformers")
        if sampling.min_p > 0:
            raise InputError("--engine continuous has no min_p: give --engine transformers")
        drawn: dict[float, list[list[Completion]]] = {}
        with merged_if(policy, self.merge):
            for temperature in dict.fromkeys(temperatures):
                copies = list(temperatures).count(temperature)
                drawn[temperature] = self.at(temperature, policy, tasks, copies, sampling, max_completion_length)
        groups = [
            [drawn[t][n][list(temperatures[:place]).count(t)] for place, t in enumerate(temperatures)]
            for n in range(len(tasks))
        ]
        if done is not None:
            for group in groups:
                done(group)
        return groups

    def at(
        self,
        temperature: float,
        policy: Policy,
        tasks: Sequence[Task],
        copies: int,
        sampling: Sampling,
        max_completion_length: int,
    ) -> list[list[Completion]]:
        """`copies` completions of each task at one temperature."""
        import torch
        from transformers import ContinuousBatchingConfig, GenerationConfig

        generation = GenerationConfig(
            do_sample=True,
            temperature=temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            max_new_tokens=max_completion_length,
            num_return_sequences=copies,
            eos_token_id=sorted(policy.eos_ids) or None,
            pad_token_id=policy.pad_id,
        )
        memory: dict[str, Any] = {} if policy.device.type == "cuda" else CPU_MEMORY
        batching = ContinuousBatchingConfig(return_logprobs=True, seed=int(torch.randint(2**31, ())), **memory)
        with policy.evaluating():
            outputs = policy.model.get_base_model().generate_batch(
                [list(task.prompt_ids) for task in tasks],
                generation_config=generation,
                continuous_batching_config=batching,
                progress_bar=False,
            )
        groups: list[list[Completion]] = [[] for _ in tasks]
        for key in sorted(outputs):
            match = REQUEST.match(key)
            output = outputs[key]
            if match is None or output.error is not None:
                raise RuntimeError(f"continuous batching failed on {key}: {output.error}")
            place = int(match[1])
            groups[place].append(_completion(policy, tasks[place], output, temperature))
        for task, group in zip(tasks, groups, strict=True):
            if len(group) != copies:
                raise RuntimeError(f"continuous batching gave {len(group)} completions of {task.id}, not {copies}")
        return groups


def _completion(policy: Policy, task: Task, output: Any, temperature: float) -> Completion:
    length, truncated = completion_length(output.generated_tokens, policy.eos_ids)
    ids = tuple(output.generated_tokens[:length])
    text = policy.tokenizer.decode(list(ids), skip_special_tokens=True)
    return Completion(task, ids, str(text), truncated, temperature, tuple(output.logprobs[:length]))
