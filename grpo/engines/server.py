"""Sampling on an OpenAI-compatible server that loads LoRA adapters while it runs, as vLLM's does.

Start it with the base model, `--enable-lora --max-lora-rank R --logprobs-mode processed_logprobs` and
VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, where it can read the folders that this process writes. Prompts go there and
completions come back as token ids.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpo.errors import InputError
from grpo.groups import Completion, Done, Task
from grpo.output import save_adapter
from grpo.policy import Policy
from grpo.rollout import completion_length
from grpo.sampler import Sampling

CONNECTIONS = 64
TIMEOUT_S = 600.0
# vLLM takes what a request leaves out from the checkpoint's generation_config.json: every option is given.
DRAW_FROM_ALL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


class ServerEngine:
    """`url` is the server's address, with or without /v1."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._is_checked = False

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
        """As for `Engine`; the server decides what runs at once, so that `batch_size` is not used.

        Raises InputError where there is no such server, or it refuses.
        """
        import torch

        if sampling.min_p > 0 and sampling.top_p < 1:
            # vLLM applies min_p before top_p and transformers after it: that leaves other tokens.
            raise InputError("--engine server cannot combine min_p with top_p: give one of them")
        with self.adapter(policy) as name, ThreadPoolExecutor(CONNECTIONS) as pool:
            if tasks and not self._is_checked and (sampling.is_restricted or set(temperatures) != {1.0}):
                self.check_logps(name, tasks[0].prompt_ids[:1])
                self._is_checked = True
            requests = [
                self.request(policy, task, temperature, sampling, max_completion_length, name)
                for task in tasks
                for temperature in temperatures
            ]
            for request in requests:
                request["seed"] = int(torch.randint(2**31, ()))
            answers = pool.map(self.choice, requests)
            groups = []
            for task in tasks:
                groups.append([self.completion(policy, task, t, next(answers)) for t in temperatures])
                if done is not None:
                    done(groups[-1])
        return groups

    @contextlib.contextmanager
    def adapter(self, policy: Policy) -> Iterator[str]:
        """The name under which the server has the adapter as it is now, inside."""
        with tempfile.TemporaryDirectory(prefix="grpo-") as folder:
            name = Path(folder).name  # of this run, process and rollout alone: caches go by it
            save_adapter(policy, Path(folder), everywhere=True)
            self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
            try:
                yield name
            finally:
                self.post("/v1/unload_lora_adapter", {"lora_name": name})

    def check_logps(self, model: str, prompt_ids: Sequence[int]) -> None:
        """Raise InputError where log-probabilities are those before the temperature: a high one must flatten them."""
        largest = []
        for temperature in (1.0, 100.0):
            request = {"model": model, "prompt": list(prompt_ids), "max_tokens": 1, "logprobs": 1}
            choice = self.choice(DRAW_FROM_ALL | request | {"temperature": temperature})
            top = (choice.get("logprobs") or {}).get("top_logprobs")
            if not top or not top[0]:
                return
            largest.append(max(top[0].values()))
        if largest[1] > largest[0] - 0.01:
            raise InputError(
                f"--server-url {self.url}: its log-probabilities are not those it samples with; start it with "
                "--logprobs-mode processed_logprobs"
            )

    def request(
        self, policy: Policy, task: Task, temperature: float, sampling: Sampling, max_tokens: int, model: str
    ) -> dict[str, Any]:
        return DRAW_FROM_ALL | {
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

    def choice(self, request: dict[str, Any]) -> dict[str, Any]:
        """The one completion of a request."""
        answer = self.post("/v1/completions", request)
        choices = answer.get("choices") if isinstance(answer, dict) else None
        if not choices:
            raise InputError(f"--server-url {self.url}: /v1/completions answered without choices: is it vLLM?")
        return choices[0]

    def completion(self, policy: Policy, task: Task, temperature: float, choice: dict[str, Any]) -> Completion:
        tokens = choice.get("token_ids")
        if tokens is None:
            raise InputError(f"--server-url {self.url}: it sends no token_ids: update it (vLLM 0.10.2 or newer)")
        length, truncated = completion_length(tokens, policy.eos_ids)
        logps = ((choice.get("logprobs") or {}).get("token_logprobs") or [])[:length]
        text = policy.tokenizer.decode(list(tokens[:length]), skip_special_tokens=True)
        known = None if len(logps) < length or None in logps else tuple(map(float, logps))
        return Completion(task, tuple(tokens[:length]), str(text), truncated, temperature, known)

    def post(self, path: str, content: dict[str, Any]) -> Any:
        """The server's answer, None where it is not JSON."""
        try:
            request = urllib.request.Request(
                self.url + path, json.dumps(content).encode(), {"Content-Type": "application/json"}
            )
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
            return None
