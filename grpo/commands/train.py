"""`grpo train`: its options are the fields of TrainConfig."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from grpo.config import DEMO, TrainConfig
from grpo.errors import InputError
from grpo.options import add_options, given_options, read_options, typed_options

HELP = "train LoRA adapters"
DESCRIPTION = (
    "Train LoRA adapters with GRPO. Without options, a tiny model that ships with this package learns to add, on a "
    "CPU, in minutes. For your own model: --model MODEL --data FILE.jsonl --reward NAME."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE.yaml", help="options as `name: value` lines; flags override them")
    add_options(parser, TrainConfig, {name: f"without --model: {value}" for name, value in DEMO.items()})


def run(arguments: argparse.Namespace) -> int:
    given = read_options(arguments.config, TrainConfig) if arguments.config else {}
    given |= given_options(arguments, TrainConfig)
    config = resumed_config(given) if given.get("resume") is not None else make_config(given)

    from grpo.quiet import quiet_libraries
    from grpo.threads import set_threads, wait_politely

    wait_politely()
    quiet_libraries()
    set_threads()

    from grpo.console import Display
    from grpo.interrupt import Interrupted
    from grpo.run import train

    try:
        train(config, Display())
    except Interrupted as interrupted:
        print(f"grpo train: {interrupted}", file=sys.stderr)
        return interrupted.status
    return 0


def make_config(given: dict[str, Any]) -> TrainConfig:
    """The configuration of the options that were given: on top of the demo's where no model is named."""
    return TrainConfig(**given) if given.get("model") is not None else TrainConfig(**(DEMO | given))


def resumed_config(given: dict[str, Any]) -> TrainConfig:
    """The options of the run that goes on; raises InputError where another value of one of them is given."""
    from grpo.resume import FREE, saved_options

    path = Path(given["resume"])
    run_dir = path if (path / "train_config.json").is_file() else path.parent
    saved = typed_options(saved_options(run_dir), TrainConfig, f"{run_dir}/train_config.json")
    changed = [
        f"{name} was {saved[name]!r} and is {value!r}"
        for name, value in given.items()
        if name not in FREE and saved.get(name) != value
    ]
    if changed:
        raise InputError(f"--resume {path}: this would be another run: {'; '.join(changed)}")
    return TrainConfig(**saved | given | {"output_dir": str(run_dir)})
