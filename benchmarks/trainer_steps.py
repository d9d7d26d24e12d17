"""Some steps of one trainer, in a process of its own: ``python -m benchmarks.trainer_steps TRAINER WORK_AS_JSON``.

Prints JSON lines: the seconds of each step's rollout, training and rest, and its sampled tokens; at last the most
memory that the process took over what it held before the first step.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .peak import memory

TRAINERS = ("ours", "TRL", "TRL with our loss")


@dataclass(frozen=True)
class Work:
    """What all trainers do: LoRA of rank 16 on all linear layers, dapo, no KL, AdamW, sampling at temperature 1.

    Attributes:
        vocabulary: 0 for the embedded model; else that of a random one, whose completions all have full length.
    """

    name: str
    vocabulary: int = 0
    questions: int = 32
    num_generations: int = 16
    max_completion_length: int = 8
    micro_batch: int = 128
    steps: int = 5
    width: int = 128
    layers: int = 3

    @property
    def micro_batches(self) -> int:
        return self.questions * self.num_generations // self.micro_batch


def parity(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs within groups, whatever the model says."""
    return [float(sum(map(ord, text)) % 2) for text in completions]


def model_folder(work: Work, folder: Path) -> str:
    if not work.vocabulary:
        from grpo.embedded import MODEL_PATH

        return str(MODEL_PATH)
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=work.vocabulary, hidden_size=work.width, intermediate_size=4 * work.width,
        num_hidden_layers=work.layers, num_attention_heads=4, num_key_value_heads=2, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": 1} | {str(number): number for number in range(2, work.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return str(folder)


def prompts(work: Work) -> list[str]:
    numbers = range(10, 10 + work.questions * work.steps)
    return [f"{n} {n + 1} {n + 2}" if work.vocabulary else f"{n % 90 + 10}+{n % 80 + 10}=" for n in numbers]


def our_steps(work: Work, model: str) -> Iterator[dict[str, float]]:
    from grpo import TrainConfig, build
    from grpo.console import Display

    config = TrainConfig(
        model=model, num_generations=work.num_generations, max_completion_length=work.max_completion_length,
        per_device_train_batch_size=work.micro_batch, gradient_accumulation_steps=work.micro_batches,
        max_steps=work.steps, rollout_batch_size=work.questions * work.num_generations, learning_rate=1e-5,
        report_kl=False, gradient_checkpointing=False,
    )  # fmt: skip
    rows = [{"prompt": prompt} for prompt in prompts(work)]
    trainer = build(config, Display.silent(), rewards=[parity], train_data=rows, eval_data=rows[:1])
    yield {}  # built
    for _ in range(work.steps):
        step = trainer.step()
        seconds = {"rollout": step.metrics["time/rollout"], "train": step.metrics["time/train"]}
        rest = step.metrics["time/step"] - sum(seconds.values())
        yield seconds | {"rest": rest, "tokens": sum(len(c.ids) for group in step.groups for c in group.completions)}
    trainer.close()


def trl_steps(work: Work, model: str, folder: Path, fused: bool) -> Iterator[dict[str, float]]:
    import datasets
    import transformers
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    trainer_class = GRPOTrainer
    if fused:
        from grpo_kernels.integrations.trl import FusedGRPOTrainer as trainer_class
    datasets.disable_progress_bars()
    spent: dict[str, float] = defaultdict(float)
    steps: list[dict[str, float]] = []

    class Timed(trainer_class):  # type: ignore[misc, valid-type]
        def _generate(self, *args: Any) -> Any:
            found = timed("rollout", super()._generate, *args)
            spent["tokens"] += sum(map(len, found[1]))
            return found

        def _prepare_inputs(self, *args: Any) -> Any:
            return timed("prepare", super()._prepare_inputs, *args)

    def timed(name: str, function: Callable[..., Any], *args: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args)
        finally:
            spent[name] += time.perf_counter() - started

    class Steps(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            spent.clear()
            spent["started"] = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            whole = time.perf_counter() - spent["started"]
            rest = spent["prepare"] - spent["rollout"]
            train = whole - spent["prepare"]
            steps.append({"rollout": spent["rollout"], "train": train, "rest": rest, "tokens": spent["tokens"]})

    arguments = GRPOConfig(
        output_dir=str(folder / "trl"), per_device_train_batch_size=work.micro_batch, loss_type="dapo", beta=0.0,
        gradient_accumulation_steps=work.micro_batches, num_generations=work.num_generations, max_steps=work.steps,
        max_completion_length=work.max_completion_length, learning_rate=1e-5, report_to=[], save_strategy="no",
        logging_strategy="no", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = Timed(
        model=model,
        reward_funcs=parity,
        args=arguments,
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts(work)}),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
        callbacks=[Steps()],
    )
    yield {}  # built
    trainer.train()
    yield from steps


def main(name: str, work: Work) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = model_folder(work, Path(folder))
        if name == "ours":
            steps = our_steps(work, model)
        else:
            steps = trl_steps(work, model, Path(folder), fused=name != "TRL")
        next(steps)
        reset = Path("/proc/self/clear_refs")
        if reset.exists():
            reset.write_text("5")
            before = memory("VmRSS")
        for step in steps:
            print(json.dumps(step), flush=True)
        print(json.dumps({"peak_bytes": memory("VmHWM") - before if reset.exists() else None}))


if __name__ == "__main__":
    main(sys.argv[1], Work(**json.loads(sys.argv[2])))
