"""Sampling on an OpenAI-compatible server that loads LoRA adapters while it runs, as vLLM's does.

Start it with the base model, `--enable-lora --max-lora-rank R --logprobs-mode processed_logprobs` and
VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, where it can read the folders that this process writes. Prompts go there and
completions come back as token ids. Without `processed_logprobs` the log-probabilities are those at temperature 1.
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpo import processes
from grpo.errors import InputError
from grpo.groups import Completion, Task
from grpo.output import save_adapter
from grpo.policy import Policy
from grpo.rollout import completion_length
from grpo.sampler import Sampling

CONNECTIONS = 64
TIMEOUT_S = 600.0


class ServerEngine:
    """`url` is the server's address, without /v1."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._versions = itertools.count(1)

    def generate(
        self,
        policy: Policy,
        tasks: Sequence[Task],
        temperatures: Sequence[float],
        sampling: Sampling,
        max_completion_length: int,
        batch_size: int,
    ) -> list[list[Completion]]:
        """As for `Engine`; the server decides what runs at once, so that `batch_size` is not used.

        Raises InputError where there is no such server, or it refuses.
        """
        import torch

        name = f"grpo-{processes.rank()}-{next(self._versions)}"
        folder = Path(tempfile.mkdtemp(prefix=f"{name}."))
        try:
            save_adapter(policy, folder)
            self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
            jobs = [
                (task, place, self.request(policy, task, temperature, sampling, max_completion_length, name))
                for task in tasks
                for place, temperature in enumerate(temperatures)
            ]
            for _, _, request in jobs:
                request["seed"] = int(torch.randint(2**31, ()))
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                answers = list(pool.map(lambda job: self.post("/v1/completions", job[2]), jobs))
            self.post("/v1/unload_lora_adapter", {"lora_name": name})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        completions = [
            self.completion(policy, task, temperatures[place], answer)
            for (task, place, _), answer in zip(jobs, answers, strict=True)
        ]
        count = len(temperatures)
        return [completions[n * count : (n + 1) * count] for n in range(len(tasks))]

    def request(
        self, policy: Policy, task: Task, temperature: float, sampling: Sampling, max_tokens: int, model: str
    ) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": list(task.prompt_ids),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "min_p": sampling.min_p,
            "stop_token_ids": sorted(policy.eos_ids),
            "logprobs": 1,
            "return_token_ids": True,
        }

    def completion(self, policy: Policy, task: Task, temperature: float, answer: dict[str, Any]) -> Completion:
        choice = answer["choices"][0]
        tokens = choice.get("token_ids")
        if tokens is None:
            raise InputError(f"--server-url {self.url}: it sends no token_ids: update it (vLLM 0.10.2 or newer)")
        length, truncated = completion_length(tokens, policy.eos_ids)
        logps = (choice.get("logprobs") or {}).get("token_logprobs")
        text = policy.tokenizer.decode(list(tokens[:length]), skip_special_tokens=True)
        known = tuple(map(float, logps[:length])) if logps and len(logps) >= length else None
        return Completion(task, tuple(tokens[:length]), str(text), truncated, temperature, known)

    def post(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """The server's answer, {} where it is not JSON."""
        request = urllib.request.Request(
            self.url + path, json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                text = response.read().decode()
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            hint = "; start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" if "lora" in path else ""
            raise InputError(f"--server-url {self.url}: {path} answered {error.code}: {said}{hint}") from error
        except (OSError, ValueError) as error:
            raise InputError(f"--server-url {self.url}: there is no server that answers: {error}") from error
        try:
            return json.loads(text)
        except ValueError:
            return {}
