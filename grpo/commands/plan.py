"""`grpo plan`: will it fit?"""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from grpo.config import DEMO
from grpo.memory.plan import CARDS, GIB, Largest, Phase, Plan, PlanConfig, gigabytes, plan
from grpo.options import add_options, given_options

if TYPE_CHECKING:
    from rich.table import Table

HELP = "simulate the memory of a run: will it fit?"
DESCRIPTION = (
    "Run the training step and the sampling of a model on tensors that have a size alone, from its configuration: "
    "without its weights, without a GPU. Says what takes how much memory, and which sizes would still fit."
)
DEMO_PROMPT = 16  # tokens; the sums of the embedded task are shorter
LOSSES = {"reference": "eager with entropies"}
ROWS = {
    "weights": "base weights",
    "adapters": "adapters",
    "optimizer": "optimizer state",
    "gradients": "adapter gradients",
    "cache": "KV cache",
    "activations": "activations",
    "loss": "logits of the loss",
    "overhead": "overhead (assumed)",
    "total": "in all",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, in bytes")
    add_options(parser, PlanConfig)


def run(arguments: argparse.Namespace) -> int:
    config = make_config(given_options(arguments, PlanConfig))

    from grpo.quiet import quiet_libraries

    quiet_libraries()

    from rich.console import Console

    with Console(stderr=True).status("simulating, which takes up to a minute or two for large models"):
        found = plan(config)
    if arguments.json:
        print(json.dumps(found.to_dict(), indent=2))
        return 0

    console = Console(highlight=False, soft_wrap=True)
    console.print(table(found))
    for line in lines(found):
        console.print(line, markup=False)
    return 0


def make_config(given: dict[str, Any]) -> PlanConfig:
    """The options that were given: on top of the demo's, as for `grpo train`, where no model is named."""
    if given.get("model") is not None:
        return PlanConfig(**given)
    names = {field.name for field in dataclasses.fields(PlanConfig)}
    demo = {name: value for name, value in DEMO.items() if name in names}
    return PlanConfig(**demo | {"max_prompt_length": DEMO_PROMPT} | given)


def table(plan: Plan) -> Table:
    """What takes the memory of each phase when most is held."""
    from rich.table import Table

    phases: dict[str, Phase] = {
        "rollout": plan.rollout,
        f"training, {LOSSES.get(plan.loss_path, plan.loss_path)}": plan.training,
        "training, eager": plan.eager,
    }
    result = Table("GB, simulated")
    for name in phases:
        result.add_column(name, justify="right")
    result.add_row("most is held at the", *(phase.moment for phase in phases.values()))
    result.add_section()
    for field, label in ROWS.items():
        if field == "total":
            result.add_section()
        result.add_row(label, *(f"{getattr(phase, field) / GIB:.2f}" for phase in phases.values()))
    return result


def lines(plan: Plan) -> list[str]:
    """What follows from the table."""
    config = plan.config
    shown = [
        f"{config.per_device_train_batch_size} sequences of {config.max_prompt_length} + "
        f"{config.max_completion_length} tokens in a micro-batch, {config.rollout_batch_size} sampled at once",
        "the loss alone: " + ", ".join(f"{name} {gigabytes(size)}" for name, size in plan.losses.items()),
    ]
    if plan.capacity is None:
        needed = max(plan.rollout.total, plan.training.total)
        cards = [card for card in CARDS if card * GIB >= needed]
        shown.append(f"fits cards of {cards[0]} GB and more" if cards else f"fits no card of {CARDS[-1]} GB or less")
        shown.append("give --card or --gpu-memory for the largest sizes that fit")
        return shown
    shown.append(f"it {'fits' if plan.fits else 'does not fit'} into {gigabytes(plan.capacity)}")
    shown += [f"warning: {line}" for line in plan.warnings()]
    shown += [f"largest that fits, {name} loss: {_sizes(sizes)}" for name, sizes in plan.largest.items()]
    return shown


def _sizes(sizes: Largest) -> str:
    batch = f"--per-device-train-batch-size {sizes.batch_size}" if sizes.batch_size else "no micro-batch"
    length = (
        f"--max-completion-length {sizes.completion_length}"
        if sizes.completion_length
        else "no --max-completion-length"
    )
    return f"{batch}, or {length}"
