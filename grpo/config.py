"""The options of a training run: one frozen dataclass, from which the command line is generated."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.errors import InputError
from grpo.options import option

if TYPE_CHECKING:
    from grpo_kernels import GRPOLossConfig

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
SCALE_REWARDS = ("group", "batch", "none")
LOSS_PATHS = ("auto", "linear", "logits", "eager")
DTYPES = ("auto", "float32", "bfloat16", "float16")
CHOICES = {"loss_type": LOSS_TYPES, "scale_rewards": SCALE_REWARDS, "dtype": DTYPES, "loss_path": LOSS_PATHS}


@dataclass(frozen=True)
class TrainConfig:
    """Every option of `grpo train`. Names are TRL's where TRL has them.

    One optimizer step uses `per_device_train_batch_size * gradient_accumulation_steps` completions, that is
    `questions_per_step` questions with `num_generations` completions each. How that product is split changes
    memory and speed, never the update.
    """

    model: str | None = option(
        None,
        "model",
        "folder or Hub id of a causal LM; without it, the tiny model that ships with this package",
    )
    dtype: str = option("auto", "model", "dtype of the frozen base; auto: float32 on a CPU, else bfloat16", DTYPES)
    lora_r: int = option(16, "model", "rank of the LoRA adapters (always float32)")
    lora_alpha: float = option(32.0, "model", "LoRA scale; adapters are multiplied by lora_alpha / lora_r")
    lora_target_modules: tuple[str, ...] = option(
        ("all-linear",), "model", "names of the modules to adapt, or all-linear: all but the output head"
    )

    data: str | None = option(
        None, "data", "JSONL file: a `prompt` (text or chat messages) and any columns that the rewards use"
    )
    eval_data: str | None = option(None, "data", "JSONL file of held-out problems, in the same form as --data")
    eval_size: int | None = option(
        None, "data", "problems to hold out of --data without --eval-data; default: a tenth, at most 500"
    )
    reward: tuple[str, ...] = option(
        ("numeric",), "data", "rewards to add up, by name; the first decides the held-out accuracy"
    )
    reward_weights: tuple[float, ...] | None = option(None, "data", "a weight for each reward; default: 1 each")

    num_generations: int = option(8, "rollout", "completions sampled for each question: the group size")
    max_completion_length: int = option(256, "rollout", "most tokens in a completion")
    temperature: float = option(1.0, "rollout", "sampling temperature, also of the trained log-probabilities")
    rollout_batch_size: int = option(64, "rollout", "sequences generated at once, in training and evaluation")

    loss_type: str = option("dapo", "objective", "the GRPO variant", LOSS_TYPES)
    beta: float = option(0.0, "objective", "weight of the KL to the base model; 0 trains without a reference")
    epsilon: float = option(0.2, "objective", "the ratio is clipped below at 1 - epsilon (num_iterations > 1)")
    epsilon_high: float | None = option(
        None,
        "objective",
        "the ratio is clipped above at 1 + epsilon_high; default: epsilon; cispo: the bound itself",
    )
    scale_rewards: str = option(
        "group",
        "objective",
        "divide advantages by the rewards' standard deviation in the group or batch",
        SCALE_REWARDS,
    )
    num_iterations: int = option(1, "objective", "optimizer steps on each batch of completions")

    max_steps: int = option(100, "optimisation", "batches of completions to sample and train on")
    per_device_train_batch_size: int = option(8, "optimisation", "completions in one forward and backward pass")
    gradient_accumulation_steps: int = option(8, "optimisation", "such passes in one optimizer step")
    loss_path: str = option(
        "auto",
        "optimisation",
        "how the loss is computed, in falling order of memory saved: linear from hidden states, logits from logits, "
        "eager by plain autograd; auto: linear where the model's head allows it, else logits",
        LOSS_PATHS,
    )
    learning_rate: float = option(5e-5, "optimisation", "AdamW's peak learning rate")
    warmup_steps: int = option(3, "optimisation", "steps of linear warm-up")
    min_lr_rate: float = option(0.1, "optimisation", "share of the learning rate that a linear decay ends at; 1: none")
    adam_beta1: float = option(0.9, "optimisation", "AdamW's beta1")
    adam_beta2: float = option(0.99, "optimisation", "AdamW's beta2")
    weight_decay: float = option(0.0, "optimisation", "AdamW's weight decay")
    max_grad_norm: float = option(1.0, "optimisation", "gradients are clipped to this norm")
    seed: int = option(0, "optimisation", "seed of the adapters, the order of the data and the sampling")

    output_dir: str | None = option(None, "output", "folder to write; default: a new one under runs/")
    overwrite_output_dir: bool = option(False, "output", "replace an output folder that holds an earlier run")
    report_kl: bool = option(
        True, "output", "with beta 0, spend one reference pass a step on reporting how far the policy moved"
    )

    def __post_init__(self) -> None:
        for name in ("lora_r", "max_completion_length", "rollout_batch_size", "num_iterations", "max_steps",
                     "per_device_train_batch_size", "gradient_accumulation_steps"):  # fmt: skip
            _require(self, name, getattr(self, name) >= 1, "at least 1")
        _require(self, "num_generations", self.num_generations >= 2, "at least 2: advantages compare completions")
        for name in ("temperature", "learning_rate", "lora_alpha", "max_grad_norm"):
            _require(self, name, 0 < getattr(self, name) < math.inf, "a positive number")
        for name in ("beta", "epsilon", "warmup_steps", "weight_decay"):
            _require(self, name, 0 <= getattr(self, name) < math.inf, "0 or a positive number")
        for name in ("adam_beta1", "adam_beta2"):
            _require(self, name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        _require(self, "min_lr_rate", 0 <= self.min_lr_rate <= 1, "in [0, 1]")
        _require(self, "seed", 0 <= self.seed < 2**63, "0 or a positive integer below 2**63")
        _require(self, "eval_size", self.eval_size is None or self.eval_size >= 1, "at least 1")
        for name, choices in CHOICES.items():
            _require(self, name, getattr(self, name) in choices, "one of " + ", ".join(choices))
        if not self.reward:
            raise InputError("--reward needs at least one name")
        if len(set(self.reward)) != len(self.reward):
            raise InputError(f"--reward names {' '.join(self.reward)}: give each reward once")
        if self.reward_weights is not None and len(self.reward_weights) != len(self.reward):
            raise InputError(
                f"--reward-weights has {len(self.reward_weights)} numbers for {len(self.reward)} rewards: give one each"
            )
        for weight in self.reward_weights or ():
            if not math.isfinite(weight):
                raise InputError(f"--reward-weights {weight}: every weight must be a finite number")
        if self.completions_per_step % self.num_generations:
            raise InputError(
                "--per-device-train-batch-size times --gradient-accumulation-steps is "
                f"{self.completions_per_step} completions a step: make it a multiple of --num-generations "
                f"({self.num_generations})"
            )
        if self.model is None and (self.data or self.eval_data):
            raise InputError(
                "--data needs --model, a folder or Hub id of a causal LM: the embedded model only does sums"
            )
        if self.model is not None and self.data is None:
            raise InputError("--model needs --data FILE.jsonl, the problems to train on")
        if self.eval_data is not None and self.eval_size is not None:
            raise InputError("--eval-size holds problems out of --data and --eval-data replaces that: give one of them")

    @property
    def completions_per_step(self) -> int:
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def questions_per_step(self) -> int:
        return self.completions_per_step // self.num_generations

    @property
    def weights(self) -> tuple[float, ...]:
        """One weight for each reward."""
        return self.reward_weights or (1.0,) * len(self.reward)

    def loss_config(self) -> GRPOLossConfig:
        """The part that the loss reads; raises InputError for what the loss refuses."""
        from grpo_kernels import GRPOLossConfig

        try:
            return GRPOLossConfig(
                loss_type=self.loss_type,
                beta=self.beta,
                epsilon=self.epsilon,
                epsilon_high=self.epsilon_high,
                temperature=self.temperature,
                max_completion_length=self.max_completion_length,
            )
        except ValueError as error:
            raise InputError(f"the loss refuses these options: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# What `grpo train` without --model changes: a recipe for a tiny model that adds two-digit numbers.
DEMO: dict[str, Any] = {
    "num_generations": 16,
    "max_completion_length": 4,
    "rollout_batch_size": 1024,
    "max_steps": 100,
    "per_device_train_batch_size": 1024,
    "gradient_accumulation_steps": 1,
    "learning_rate": 3e-3,
}


def default_output_dir(config: TrainConfig, stamp: str) -> Path:
    """A folder under runs/ that does not exist yet; `stamp` is the time, as text."""
    name = "demo" if config.model is None else Path(config.model).name
    first = Path("runs") / f"{name}-{stamp}"
    numbered = (first.with_name(f"{first.name}-{n}") for n in range(2, 10_000))
    return next(path for path in (first, *numbered) if not path.exists())


def _require(config: TrainConfig, name: str, ok: bool, allowed: str) -> None:
    if not ok:
        raise InputError(f"--{name.replace('_', '-')} {getattr(config, name)}: must be {allowed}")
