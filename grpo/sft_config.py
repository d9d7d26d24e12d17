"""The options of `grpo sft`."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from grpo.config import DTYPES
from grpo.data.load import DataConfig
from grpo.errors import InputError
from grpo.options import option
from grpo.schedule import SCHEDULES


@dataclass(frozen=True)
class SFTRunConfig(DataConfig):
    """Every option of a supervised warm start. One optimizer step uses `per_device_train_batch_size *
    gradient_accumulation_steps` examples; how that product is split changes memory and speed, never the update."""

    model: str | None = option(None, "model", "folder or Hub id of a causal LM; default: the embedded one")
    adapter: str | None = option(None, "model", "folder of a LoRA adapter to go on from")
    full: bool = option(False, "model", "train every parameter, in float32, instead of adapters")
    dtype: str = option("auto", "model", "dtype of the frozen base; auto: float32 on a CPU, else bfloat16", DTYPES)
    load_in_4bit: bool = option(False, "model", "quantise the frozen base to nf4 (bitsandbytes)")
    attn_implementation: str | None = option(None, "model", "transformers' attention: sdpa, eager, flash_attention_2")
    gradient_checkpointing: bool | None = option(
        None, "model", "compute activations again in the backward pass instead of keeping them; default: on a GPU"
    )
    lora_r: int = option(16, "model", "rank of the LoRA adapters (always float32)")
    lora_alpha: float = option(32.0, "model", "LoRA scale; adapters are multiplied by lora_alpha / lora_r")
    lora_dropout: float = option(0.0, "model", "dropout before the adapters")
    lora_target_modules: tuple[str, ...] = option(
        ("all-linear",), "model", "names of the modules to adapt, or all-linear: all but the output head"
    )

    completion_column: str = option("completion", "data", "column with what to learn: text, or one chat message")
    max_length: int | None = option(
        None, "data", "drop examples of more tokens, and count them; default: what the model takes"
    )

    max_steps: int = option(100, "optimisation", "optimizer steps")
    per_device_train_batch_size: int = option(8, "optimisation", "examples in one forward and backward pass")
    gradient_accumulation_steps: int = option(1, "optimisation", "such passes in one optimizer step")
    learning_rate: float = option(1e-4, "optimisation", "AdamW's peak learning rate")
    lr_scheduler_type: str = option(
        "cosine", "optimisation", "how the learning rate falls after the warm-up", SCHEDULES
    )
    warmup_steps: int = option(3, "optimisation", "steps of linear warm-up")
    min_lr_rate: float = option(0.1, "optimisation", "share of the learning rate that the decay ends at")
    weight_decay: float = option(0.0, "optimisation", "AdamW's weight decay")
    max_grad_norm: float = option(1.0, "optimisation", "gradients are clipped to this norm")

    output_dir: str | None = option(None, "output", "folder to write; default: a new one under runs/")
    overwrite_output_dir: bool = option(False, "output", "replace an output folder that holds an earlier run")
    eval_steps: int | None = option(None, "output", "held-out loss every so many steps, besides the start and the end")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lora_r", "max_steps", "per_device_train_batch_size", "gradient_accumulation_steps", "max_length",
                     "eval_steps"):  # fmt: skip
            self._require(name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "lora_alpha", "max_grad_norm"):
            self._require(name, 0 < getattr(self, name) < math.inf, "a positive number")
        for name in ("warmup_steps", "weight_decay"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "0 or a positive number")
        self._require("lora_dropout", 0 <= self.lora_dropout < 1, "in [0, 1)")
        self._require("min_lr_rate", 0 <= self.min_lr_rate <= 1, "in [0, 1]")
        for name, choices in (("dtype", DTYPES), ("lr_scheduler_type", SCHEDULES)):
            self._require(name, getattr(self, name) in choices, "one of " + ", ".join(choices))
        if self.full and (self.adapter or self.load_in_4bit):
            raise InputError("--full trains every parameter: it goes with neither --adapter nor --load-in-4bit")
        if self.data is None:
            raise InputError("--data is missing: the examples, with a prompt and a completion")

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def _require(self, name: str, ok: bool, allowed: str) -> None:
        if not ok:
            raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be {allowed}")
