"""Will it fit? The memory of a run's two phases, and the largest sizes that a card takes."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo.config import DTYPES, LOSS_PATHS, TrainConfig
from grpo.errors import InputError
from grpo.options import option

if TYPE_CHECKING:
    from grpo.memory.step import TrainingPeak

GIB = 2**30
# Nominal memory of common cards, which is in units of 2**30 bytes.
CARDS = (8, 12, 16, 24, 32, 48, 80, 141)
# Assumptions, since they are not tensors: CUDA's context with the libraries' workspaces, and what the allocator's
# blocks hold beyond the tensors that come and go.
CONTEXT_BYTES = 3 * GIB // 4
FRAGMENTATION = 0.05
# Completion lengths are tried in steps of so many tokens, and so many sequences at most.
TOKEN_STEP = 64
MOST_SEQUENCES = 1024
MOST_TOKENS = 1 << 17

_TRAIN = {field.name: field for field in dataclasses.fields(TrainConfig)}


def _same(name: str) -> Any:
    """The option of that name of `grpo train`."""
    field = _TRAIN[name]
    return option(field.default, "run", field.metadata["help"], field.metadata["choices"])


@dataclass(frozen=True)
class PlanConfig:
    """What decides whether a run fits; names and defaults are those of `TrainConfig`."""

    model: str | None = option(None, "model", "folder, config.json or Hub id; without it, the embedded model")
    gpu_memory: float | None = option(None, "model", "memory of the GPU in GB; default: of this machine's, if any")
    card: str | None = option(None, "model", "a usual size of it instead, in GB", tuple(map(str, CARDS)))
    dtype: str = option("auto", "model", "dtype of the frozen base; auto: bfloat16", DTYPES)
    load_in_4bit: bool = _same("load_in_4bit")
    attn_implementation: str | None = _same("attn_implementation")
    gradient_checkpointing: bool | None = _same("gradient_checkpointing")
    lora_r: int = _same("lora_r")
    lora_target_modules: tuple[str, ...] = _same("lora_target_modules")
    optim: str = _same("optim")
    loss_path: str = option("auto", "run", "auto means linear", LOSS_PATHS)
    num_generations: int = _same("num_generations")
    per_device_train_batch_size: int = _same("per_device_train_batch_size")
    rollout_batch_size: int = _same("rollout_batch_size")
    merge_lora: bool | None = _same("merge_lora")
    max_prompt_length: int = option(512, "run", "tokens of the longest prompt")
    max_completion_length: int = _same("max_completion_length")

    def __post_init__(self) -> None:
        for name in ("lora_r", "num_generations", "per_device_train_batch_size", "rollout_batch_size",
                     "max_prompt_length", "max_completion_length"):  # fmt: skip
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least 1")
        if self.gpu_memory is not None and not 0 < self.gpu_memory < 1e6:
            raise InputError(f"--gpu-memory {self.gpu_memory}: must be a positive number of GB")
        if self.gpu_memory is not None and self.card is not None:
            raise InputError("--card is a usual --gpu-memory: give one of them")

    @classmethod
    def of_run(cls, config: TrainConfig, max_prompt_length: int, gpu_memory: float | None = None) -> PlanConfig:
        """The plan of a run whose longest prompt is known; `gpu_memory` in GB of 2**30 bytes."""
        names = {field.name for field in dataclasses.fields(cls)} & set(_TRAIN)
        options = {name: getattr(config, name) for name in names}
        return cls(**options | {"max_prompt_length": max_prompt_length, "gpu_memory": gpu_memory})

    @property
    def capacity(self) -> int | None:
        """Bytes of the card, if it is known."""
        if self.card is not None:
            return int(self.card) * GIB
        if self.gpu_memory is not None:
            return round(self.gpu_memory * GIB)
        import torch

        return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else None


@dataclass(frozen=True)
class Phase:
    """Bytes at the moment of a phase when most are held, which is named."""

    moment: str
    weights: int
    adapters: int
    optimizer: int
    gradients: int
    cache: int
    activations: int
    loss: int

    @property
    def overhead(self) -> int:
        """What is assumed, not simulated."""
        return CONTEXT_BYTES + round(FRAGMENTATION * (self.cache + self.activations + self.loss))

    @property
    def total(self) -> int:
        kept = self.weights + self.adapters + self.optimizer + self.gradients
        return kept + self.cache + self.activations + self.loss + self.overhead


@dataclass(frozen=True)
class Largest:
    """The largest micro-batch that training takes, the longest completion that both phases take, all else as planned.

    None: not even the smallest. At most `MOST_SEQUENCES`, and what the model takes.
    """

    batch_size: int | None
    completion_length: int | None


@dataclass(frozen=True)
class Plan:
    """Simulated memory of a run, in bytes.

    Attributes:
        capacity: of the card, None if it is not known.
        loss_path: how the loss is computed; `training` is with it, `eager` with plain autograd in float32.
        losses: what each of the two holds from the hidden states to their gradient, whenever that is.
        largest: by the same two names; empty without a card, or where it was not asked for.
    """

    config: PlanConfig
    capacity: int | None
    loss_path: str
    rollout: Phase
    training: Phase
    eager: Phase
    losses: dict[str, int]
    largest: dict[str, Largest]

    @property
    def fits(self) -> bool | None:
        """Whether the run fits; None where the card is not known."""
        return None if self.capacity is None else max(self.rollout.total, self.training.total) <= self.capacity

    def summary(self) -> str:
        """One line, for the start of a run."""
        sizes = f"rollout {gigabytes(self.rollout.total)}, training {gigabytes(self.training.total)}"
        of = "" if self.capacity is None else f" of {gigabytes(self.capacity)}"
        return f"memory (simulated): {sizes}{of}; with the eager loss training would take {gigabytes(self.eager.total)}"

    def warnings(self) -> list[str]:
        """A line for each phase that does not fit, with what to change."""
        advice = {
            "rollout": (self.rollout, "--rollout-batch-size or --max-completion-length"),
            "training": (self.training, "--per-device-train-batch-size or --max-completion-length"),
        }
        instead = "" if self.config.load_in_4bit else ", or give --load-in-4bit"
        return [
            f"the {name} phase takes {gigabytes(phase.total)} (simulated) of the {gigabytes(self.capacity)} there are: "
            f"lower {options}{instead}"
            for name, (phase, options) in advice.items()
            if self.capacity is not None and phase.total > self.capacity
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON: bytes, and what they are."""
        phases = {
            name: dataclasses.asdict(phase) | {"overhead_assumed": phase.overhead, "total": phase.total}
            for name, phase in (("rollout", self.rollout), ("training", self.training), ("training_eager", self.eager))
        }
        return {
            "kind": "simulated",
            "unit": "bytes",
            "config": dataclasses.asdict(self.config),
            "capacity": self.capacity,
            "fits": self.fits,
            "loss_path": self.loss_path,
            **phases,
            "loss_alone": self.losses,
            "largest": {name: dataclasses.asdict(sizes) for name, sizes in self.largest.items()},
        }


def plan(config: PlanConfig, search: bool = True) -> Plan:
    """Simulate the phases of a run; with `search`, also find the largest sizes that fit the card, if it is known.

    Raises InputError for a model that cannot be read or simulated.
    """
    return Planner(config).plan(search)


class Planner:
    """Simulates a model at several sizes, each once."""

    def __init__(self, config: PlanConfig) -> None:
        from grpo.memory.model import FakePolicy, ModelOptions, read_config
        from grpo.policy import max_length, model_path

        self.config = config
        self.loss_path = {"auto": "linear", "eager": "reference"}.get(config.loss_path, config.loss_path)
        model_config = read_config(model_path(TrainConfig(model=config.model)))
        limit = max_length(model_config) or MOST_TOKENS
        if config.max_prompt_length + config.max_completion_length > limit:
            raise InputError(
                f"--max-prompt-length {config.max_prompt_length} and --max-completion-length "
                f"{config.max_completion_length}: the model takes {limit} tokens in all"
            )
        self.most_completion = limit - config.max_prompt_length
        self.fake = FakePolicy(
            model_config,
            ModelOptions(
                dtype="bfloat16" if config.dtype == "auto" else config.dtype,
                load_in_4bit=config.load_in_4bit,
                gradient_checkpointing=config.gradient_checkpointing is not False,
                attn_implementation=config.attn_implementation,
                lora_r=config.lora_r,
                lora_target_modules=config.lora_target_modules,
                optim=config.optim,
            ),
        )

    def plan(self, search: bool) -> Plan:
        config = self.config
        planned = config.per_device_train_batch_size, config.max_completion_length
        capacity = config.capacity
        peaks = self.peaks(*planned)
        names = dict.fromkeys((self.loss_path, "eager"))
        return Plan(
            config,
            capacity,
            self.loss_path,
            self.rollout(config.max_completion_length),
            self.training(*planned, self.loss_path),
            self.training(*planned, "eager"),
            {name: peaks[name].loss for name in names},
            {name: self.largest(name, capacity) for name in names} if search and capacity is not None else {},
        )

    def largest(self, loss: str, capacity: int) -> Largest:
        """The largest micro-batch with which training fits, and the longest completion with which both phases do."""
        from grpo.memory.search import largest

        config = self.config
        batch_size, length = config.per_device_train_batch_size, config.max_completion_length

        def of_length(steps: int) -> int:
            tokens = steps * TOKEN_STEP
            total = self.training(batch_size, tokens, loss).total
            return total if total > capacity else max(total, self.rollout(tokens).total)

        def of_batch(sequences: int) -> int:
            return self.training(sequences, length, loss).total

        batch = largest(of_batch, capacity, 1, max(MOST_SEQUENCES, batch_size), guess=batch_size)
        most = self.most_completion // TOKEN_STEP
        steps = largest(of_length, capacity, 1, most, guess=length // TOKEN_STEP) if most else None
        return Largest(batch, None if steps is None else steps * TOKEN_STEP)

    @functools.cache  # noqa: B019 (a planner lives as long as its plan is made)
    def peaks(self, batch_size: int, completion_length: int) -> dict[str, TrainingPeak]:
        from grpo.memory.step import Sizes, training_peaks

        config = self.config
        sizes = Sizes(batch_size, config.num_generations, config.max_prompt_length, completion_length)
        return training_peaks(self.fake, sizes, tuple(dict.fromkeys((self.loss_path, "eager"))))

    def training(self, batch_size: int, completion_length: int, loss: str) -> Phase:
        """A micro-batch, when it holds most: at the loss, or in a pass of the backbone."""
        peak = self.peaks(batch_size, completion_length)[loss]
        at_loss = peak.kept + peak.loss == peak.total
        return Phase(
            moment="loss" if at_loss else "layers",
            weights=self.fake.weights,
            adapters=self.fake.adapters,
            optimizer=self.fake.optimizer,
            gradients=self.fake.adapters,
            cache=0,
            activations=peak.kept if at_loss else peak.total,
            loss=peak.loss if at_loss else 0,
        )

    @functools.cache  # noqa: B019
    def rollout(self, completion_length: int) -> Phase:
        """Sampling `rollout_batch_size` completions, or evaluating as many prompts."""
        from grpo.memory.step import Sizes, rollout_peak

        config = self.config
        peak = rollout_peak(
            self.fake,
            Sizes(config.rollout_batch_size, config.num_generations, config.max_prompt_length, completion_length),
        )
        decodes = peak.cache + peak.decoding >= peak.prompt_cache + peak.prefill
        return Phase(
            moment="last token" if decodes else "prompts",
            weights=self.fake.weights + (self.fake.adapted if config.merge_lora else 0),
            adapters=self.fake.adapters,
            optimizer=self.fake.optimizer,
            gradients=0,
            cache=peak.cache if decodes else peak.prompt_cache,
            activations=peak.decoding if decodes else peak.prefill,
            loss=0,
        )


def gigabytes(count: int | None) -> str:
    """Bytes in units of 2**30, which is what the memory of cards is called GB in."""
    return "?" if count is None else f"{count / GIB:.{2 if count < 10 * GIB else 1}f} GB"
