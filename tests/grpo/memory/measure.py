"""Prints as JSON what real training passes take on this CPU: `python -m tests.grpo.memory.measure`.

For each architecture and each way to compute the loss: the high-water mark of the process during a pass over what it
held before, in bytes. Run in a process of its own, with glibc told to give freed memory back (`ENVIRONMENT`).
"""

from __future__ import annotations

import ctypes
import gc
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main() -> None:
    import torch
    from torch import Tensor
    from transformers import AutoModelForCausalLM

    from grpo.batch import Batch, TrainSequence, collate
    from grpo.loss_path import batch_loss
    from grpo.policy import Policy, make_policy
    from tests.grpo.memory.architectures import CHECKPOINTING, CONFIGS, LORA_R, LOSSES, SIZES

    def loss(policy: Policy, batch: Batch, name: str) -> Tensor:
        if name != "eager":
            return batch_loss(policy, batch, name).loss
        log_probs = torch.log_softmax(policy.logits(batch).float(), dim=-1)
        return log_probs.gather(-1, batch.completion_ids[..., None]).sum()

    def passed(policy: Policy, batch: Batch, name: str) -> int:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the high-water mark is what is held now
        with policy.learning():
            loss(policy, batch, name).backward()
        return status("VmHWM") - before

    prompts = [tuple(range(1, SIZES.prompt + 1 - n)) for n in range(SIZES.completions // SIZES.num_generations)]
    batch = collate(
        [
            TrainSequence(prompts[n // SIZES.num_generations], tuple(range(1, SIZES.completion + 1 - n)), 1.0)
            for n in range(SIZES.completions)
        ],
        pad=0,
    )
    tokenizer: Any = SimpleNamespace(pad_token_id=0, eos_token_id=0)
    found: dict[str, dict[str, int]] = {}
    for kind, config in CONFIGS.items():
        base = AutoModelForCausalLM.from_config(config)
        policy = make_policy(base, tokenizer, LORA_R, 2.0 * LORA_R, gradient_checkpointing=CHECKPOINTING[kind])
        passed(policy, batch, "linear")  # from here on gradients are there, and the libraries have what they keep
        found[kind] = {name: passed(policy, batch, name) for name in LOSSES}
        del policy, base
    print(json.dumps(found))


if __name__ == "__main__":
    main()
