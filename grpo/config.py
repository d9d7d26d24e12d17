"""The options of a training run: one frozen dataclass, from which the command line is generated."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo.data.load import DataConfig
from grpo.diagnose import ALARMS
from grpo.errors import InputError
from grpo.options import option

if TYPE_CHECKING:
    from grpo_kernels import GRPOLossConfig

LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
SCALE_REWARDS = ("group", "batch", "none")
LOSS_PATHS = ("auto", "linear", "logits", "eager")
DTYPES = ("auto", "float32", "bfloat16", "float16")
ENGINES = ("transformers", "continuous", "server")
CORRECTIONS = ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


@dataclass(frozen=True)
class TrainConfig(DataConfig):
    """Every option of `grpo train`. Names are TRL's where TRL has them.

    In each process one optimizer step uses `per_device_train_batch_size * gradient_accumulation_steps` completions,
    that is `questions_per_step` questions with `num_generations` completions each. How that product is split, also
    among processes, changes memory and speed, never the update.
    """

    model: str | None = option(
        None,
        "model",
        "folder or Hub id of a causal LM; without it, the tiny model that ships with this package",
    )
    adapter: str | None = option(
        None, "model", "folder of a LoRA adapter to go on from (of grpo sft, for one); the reference is its frozen copy"
    )
    dtype: str = option("auto", "model", "dtype of the frozen base; auto: float32 on a CPU, else bfloat16", DTYPES)
    load_in_4bit: bool = option(False, "model", "quantise the frozen base to nf4 (bitsandbytes)")
    mixed_precision: str = option("no", "model", "bf16: run a float32 base under autocast to bfloat16", ("no", "bf16"))
    attn_implementation: str | None = option(None, "model", "transformers' attention: sdpa, eager, flash_attention_2")
    gradient_checkpointing: bool | None = option(
        None, "model", "compute activations again in the backward pass instead of keeping them; default: on a GPU"
    )
    lora_r: int = option(16, "model", "rank of the LoRA adapters (always float32)")
    lora_alpha: float = option(32.0, "model", "LoRA scale; adapters are multiplied by lora_alpha / lora_r")
    lora_dropout: float = option(0.0, "model", "dropout before the adapters, in the gradient's pass alone")
    use_rslora: bool = option(False, "model", "rank-stabilised LoRA: multiply by lora_alpha / sqrt(lora_r)")
    use_dora: bool = option(False, "model", "weight-decomposed LoRA")
    lora_target_modules: tuple[str, ...] = option(
        ("all-linear",), "model", "names of the modules to adapt, or all-linear: all but the output head"
    )

    reward: tuple[str, ...] = option(
        ("numeric",),
        "data",
        "rewards to add up: NAME, NAME:option=value or FILE.py:function; the first decides the held-out accuracy",
    )
    reward_weights: tuple[float, ...] | None = option(None, "data", "a weight for each reward; default: 1 each")

    on_reward_error: str = option(
        "none",
        "data",
        "a reward that fails on a sample gives it no verdict (none) or ends the run (stop)",
        ("none", "stop"),
    )

    reward_timeout: float | None = option(
        None,
        "data",
        "seconds that a call of a function of your own may take; with it, one from a file runs in a process",
    )

    num_generations: int = option(8, "rollout", "completions sampled for each question: the group size")
    max_completion_length: int = option(256, "rollout", "most tokens in a completion")
    temperature: float = option(1.0, "rollout", "sampling temperature, also of the trained log-probabilities")
    temperatures: tuple[float, ...] | None = option(
        None, "rollout", "temperatures that the completions of a group take in turn, in place of --temperature"
    )
    top_p: float = option(1.0, "rollout", "sample from the most probable tokens that together have this probability")
    top_k: int = option(0, "rollout", "sample from this many of the most probable tokens; 0: all")
    min_p: float = option(0.0, "rollout", "sample from tokens with at least this share of the largest probability")
    rollout_batch_size: int = option(64, "rollout", "sequences generated at once, in training and evaluation")
    engine: str = option(
        "transformers",
        "rollout",
        "who samples: transformers' generate, its continuous batching, or an OpenAI-compatible server that loads LoRA",
        ENGINES,
    )
    server_url: str | None = option(None, "rollout", "address of the server, such as http://localhost:8000")
    merge_lora: bool | None = option(
        None,
        "rollout",
        "sample with the adapters merged into copies of the weights that they adapt; default: for float32 on a CPU",
    )
    importance_sampling_correction: str = option(
        "none",
        "rollout",
        "weight tokens or sequences by trainer's over sampler's probability, truncated or masked at a cap",
        CORRECTIONS,
    )
    importance_sampling_cap: float = option(2.0, "rollout", "the cap of that correction")

    dead_groups: str = option(
        "keep",
        "groups",
        "groups whose completions are all equally good: keep, drop, or resample other questions (dynamic sampling)",
        ("keep", "drop", "resample"),
    )
    max_rounds: int = option(3, "groups", "with resample, most times to sample for one step")
    difficulty_sampling: bool = option(
        False, "groups", "prefer questions that are neither always nor never solved, instead of epochs"
    )
    difficulty_decay: float = option(0.7, "groups", "what earlier tries of a question count for at each new one")
    difficulty_floor: float = option(0.1, "groups", "sampling weight of a question that is always or never solved")
    min_generations: int | None = option(
        None, "groups", "with --max-generations, adapt group sizes to difficulty; their mean stays --num-generations"
    )
    max_generations: int | None = option(None, "groups", "largest group size")
    mask_truncated_completions: bool = option(
        False, "groups", "leave completions that hit the length limit out of the loss"
    )
    overlong_cache: int | None = option(
        None, "groups", "tokens before the length limit in which a penalty rises to 1 (DAPO's soft overlong punishment)"
    )
    reference_column: str | None = option(
        None, "groups", "data column with a solution, to imitate where no completion of a group is right"
    )
    reference_weight: float = option(0.1, "groups", "weight of that imitation in the loss")

    loss_type: str = option("dapo", "objective", "the GRPO variant", LOSS_TYPES)
    importance_sampling_level: str = option(
        "token", "objective", "one ratio for each token, or one for the sequence (GSPO)", ("token", "sequence")
    )
    beta: float = option(0.0, "objective", "weight of the KL to the base model; 0 trains without a reference")
    kl_estimator: str = option("k3", "objective", "estimator of the KL", ("k1", "k2", "k3"))
    use_bias_correction_kl: bool = option(False, "objective", "multiply the KL estimate by the ratio")
    kl_in_reward: bool = option(
        False, "objective", "subtract beta times the KL from the reward, not add it to the loss"
    )
    kl_target: float | None = option(None, "objective", "steer beta towards this KL a token (nats)")
    kl_gain: float = option(0.1, "objective", "how fast beta is steered")
    sync_ref_steps: int | None = option(None, "objective", "move the reference towards the policy every so many steps")
    sync_ref_alpha: float = option(0.6, "objective", "share of the policy in the reference at such a step")
    epsilon: float = option(0.2, "objective", "the ratio is clipped below at 1 - epsilon (num_iterations > 1)")
    epsilon_high: float | None = option(
        None,
        "objective",
        "the ratio is clipped above at 1 + epsilon_high; default: epsilon; cispo: the bound itself",
    )
    delta: float | None = option(None, "objective", "upper bound of the unclipped ratio (two-sided clipping)")
    entropy_coef: float = option(0.0, "objective", "weight of an entropy bonus")
    top_entropy_quantile: float = option(1.0, "objective", "train on this share of tokens, those of highest entropy")
    off_policy_mask_threshold: float | None = option(
        None, "objective", "leave out sequences of negative advantage whose mean log-ratio to the sampler passes this"
    )
    sapo_temperature_pos: float = option(1.0, "objective", "sapo: tau for positive advantages")
    sapo_temperature_neg: float = option(1.05, "objective", "sapo: tau for the others")
    vespo_k_pos: float = option(2.0, "objective", "vespo: k for positive advantages")
    vespo_lambda_pos: float = option(3.0, "objective", "vespo: lambda for positive advantages")
    vespo_k_neg: float = option(3.0, "objective", "vespo: k for the others")
    vespo_lambda_neg: float = option(2.0, "objective", "vespo: lambda for the others")
    scale_rewards: str = option(
        "group",
        "objective",
        "divide advantages by the rewards' standard deviation in the group or batch",
        SCALE_REWARDS,
    )
    advantage_estimator: str = option(
        "grpo", "objective", "compare a reward with the mean of its group, or of the others in it", ("grpo", "rloo")
    )
    std_estimator: str = option("sample", "objective", "divide by n - 1 or by n", ("sample", "population"))
    multi_objective_aggregation: str = option(
        "sum_then_normalize",
        "objective",
        "several rewards: sum them up first, or normalise each by itself (GDPO)",
        ("sum_then_normalize", "normalize_then_sum"),
    )
    num_iterations: int = option(1, "objective", "how often each batch of completions is trained on")
    steps_per_generation: int | None = option(
        None,
        "objective",
        "passes that one sampling feeds, a multiple of --gradient-accumulation-steps, which is the default",
    )

    max_steps: int = option(100, "optimisation", "optimizer steps")
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
    lr_scheduler_type: str = option(
        "linear", "optimisation", "how the learning rate falls after the warm-up", ("linear", "cosine", "constant")
    )
    warmup_steps: int = option(3, "optimisation", "steps of linear warm-up")
    min_lr_rate: float = option(0.1, "optimisation", "share of the learning rate that the decay ends at")
    optim: str = option("adamw", "optimisation", "AdamW, or its 8-bit form (bitsandbytes)", ("adamw", "adamw_8bit"))
    adam_beta1: float = option(0.9, "optimisation", "AdamW's beta1")
    adam_beta2: float = option(0.99, "optimisation", "AdamW's beta2")
    weight_decay: float = option(0.0, "optimisation", "AdamW's weight decay")
    max_grad_norm: float = option(1.0, "optimisation", "gradients are clipped to this norm")
    seed: int = option(0, "optimisation", "seed of the adapters, the order of the data and the sampling")

    fsdp: bool = option(False, "optimisation", "shard the base model over the processes (FSDP2)")

    output_dir: str | None = option(None, "output", "folder to write; default: a new one under runs/")
    overwrite_output_dir: bool = option(False, "output", "replace an output folder that holds an earlier run")
    report_kl: bool = option(
        True, "output", "with beta 0, spend one reference pass a step on reporting how far the policy moved"
    )
    eval_steps: int | None = option(None, "output", "evaluate every so many steps, besides the start and the end")
    eval_samples: int = option(
        0, "output", "with each evaluation, sample so many answers to each held-out question too: pass@k"
    )
    probe_questions: int = option(
        4, "output", "questions sampled with the same seed at every evaluation, to see what changes; 0: none"
    )
    stop_on_alarms: tuple[str, ...] = option(
        (), "output", "alarms that end the run, with a checkpoint: names as in grpo/diagnose.py, or all"
    )
    save_steps: int | None = option(
        None, "output", "save a checkpoint every so many steps; one is always saved when a run is interrupted"
    )
    save_total_limit: int = option(2, "output", "checkpoints to keep: the newest")
    report_to: tuple[str, ...] = option(
        ("tensorboard",), "output", "trackers, by accelerate's names (tensorboard, wandb, trackio, ...), or none"
    )
    resume: str | None = option(
        None, "output", "go on from a run's folder or one of its checkpoints, with its options, bit for bit"
    )
    allow_changed_rewards: bool = option(False, "output", "with --resume, go on though a reward judges otherwise now")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lora_r", "max_completion_length", "rollout_batch_size", "num_iterations", "max_steps",
                     "max_rounds", "per_device_train_batch_size", "gradient_accumulation_steps", "save_total_limit",
                     "eval_steps", "save_steps", "sync_ref_steps", "steps_per_generation"):  # fmt: skip
            _require(self, name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1")
        _require(self, "num_generations", self.num_generations >= 2, "at least 2: advantages compare completions")
        for name in ("temperature", "learning_rate", "lora_alpha", "max_grad_norm",
                     "importance_sampling_cap", "kl_gain"):  # fmt: skip
            _require(self, name, 0 < getattr(self, name) < math.inf, "a positive number")
        limit = self.reward_timeout
        _require(self, "reward_timeout", limit is None or 0 < limit < math.inf, "a positive number of seconds")
        for name in ("beta", "epsilon", "warmup_steps", "weight_decay", "reference_weight", "top_k",
                     "eval_samples", "probe_questions"):  # fmt: skip
            _require(self, name, 0 <= getattr(self, name) < math.inf, "0 or a positive number")
        for name in ("adam_beta1", "adam_beta2", "lora_dropout"):
            _require(self, name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        for name in ("min_lr_rate", "min_p", "sync_ref_alpha", "difficulty_decay"):
            _require(self, name, 0 <= getattr(self, name) <= 1, "in [0, 1]")
        for name in ("top_p", "top_entropy_quantile", "difficulty_floor"):
            _require(self, name, 0 < getattr(self, name) <= 1, "above 0 and at most 1")
        _require(self, "seed", 0 <= self.seed < 2**63, "0 or a positive integer below 2**63")
        for field in dataclasses.fields(self):
            choices = field.metadata["choices"]
            _require(
                self, field.name, not choices or getattr(self, field.name) in choices, f"one of {_listed(choices)}"
            )
        for name in self.stop_on_alarms:
            _require(self, "stop_on_alarms", name in (*ALARMS, "all"), f"all, or some of {_listed(ALARMS)}")
        self._check_rewards()
        self._check_sizes()
        self._check_combinations()

    def _check_rewards(self) -> None:
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

    def _check_sizes(self) -> None:
        if self.completions_per_step % self.num_generations:
            raise InputError(
                "--per-device-train-batch-size times --gradient-accumulation-steps is "
                f"{self.completions_per_step} completions a step: make it a multiple of --num-generations "
                f"({self.num_generations})"
            )
        if self.steps_per_generation is not None and self.steps_per_generation % self.gradient_accumulation_steps:
            raise InputError(
                f"--steps-per-generation {self.steps_per_generation}: must be a multiple of "
                f"--gradient-accumulation-steps ({self.gradient_accumulation_steps})"
            )
        if (self.min_generations is None) != (self.max_generations is None):
            raise InputError("--min-generations and --max-generations belong together: give both or neither")
        low, high = self.min_generations or self.num_generations, self.max_generations or self.num_generations
        if not 2 <= low <= self.num_generations <= high:
            raise InputError(
                f"--min-generations {low} and --max-generations {high}: must be at least 2 and enclose "
                f"--num-generations ({self.num_generations})"
            )
        if self.overlong_cache is not None and not 0 < self.overlong_cache <= self.max_completion_length:
            raise InputError(
                f"--overlong-cache {self.overlong_cache}: must be at least 1 and at most --max-completion-length "
                f"({self.max_completion_length})"
            )

    def _check_combinations(self) -> None:
        if self.engine == "server" and self.server_url is None:
            raise InputError("--engine server needs --server-url, such as http://localhost:8000")
        for name in ("kl_in_reward", "kl_target", "sync_ref_steps"):
            if getattr(self, name) and self.beta == 0:
                raise InputError(f"--{name.replace('_', '-')} needs --beta above 0: without it there is no reference")
        if self.restricts_sampling and self.loss_path == "linear":
            raise InputError(
                "--loss-path linear knows no log-probabilities on the tokens that --top-k, --top-p and --min-p leave: "
                "give --loss-path logits"
            )
        for temperature in self.temperatures or ():
            if not 0 < temperature < math.inf:
                raise InputError(f"--temperatures {temperature}: every temperature must be a positive number")

    @property
    def completions_per_step(self) -> int:
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def questions_per_step(self) -> int:
        return self.completions_per_step // self.num_generations

    @property
    def restricts_sampling(self) -> bool:
        """Whether the sampler draws from fewer tokens than all."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def passes_per_generation(self) -> int:
        """Optimizer steps that the completions of one sampling feed in one iteration."""
        return (self.steps_per_generation or self.gradient_accumulation_steps) // self.gradient_accumulation_steps

    @property
    def weights(self) -> tuple[float, ...]:
        """One weight for each reward."""
        return self.reward_weights or (1.0,) * len(self.reward)

    def loss_config(self) -> GRPOLossConfig:
        """The part that the loss reads; raises InputError for what the loss refuses."""
        from grpo_kernels import GRPOLossConfig

        try:
            shared = {f.name for f in dataclasses.fields(GRPOLossConfig)} & {f.name for f in dataclasses.fields(self)}
            options = {name: getattr(self, name) for name in shared}
            return GRPOLossConfig(**options | ({"beta": 0.0} if self.kl_in_reward else {}))
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


def _listed(choices: tuple[str, ...] | None) -> str:
    return ", ".join(choices or ())


def _require(config: TrainConfig, name: str, ok: bool, allowed: str) -> None:
    if not ok:
        raise InputError(f"--{name.replace('_', '-')} {getattr(config, name)}: must be {allowed}")
