"""`grpo train`: its options are the fields of TrainConfig."""

from __future__ import annotations

import argparse
from typing import Any

from grpo.config import DEMO, TrainConfig
from grpo.options import add_options, given_options, read_options

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
    config = make_config(given | given_options(arguments, TrainConfig))

    from grpo.quiet import quiet_libraries
    from grpo.threads import set_threads, wait_politely

    wait_politely()
    quiet_libraries()
    set_threads()

    from grpo.console import Display
    from grpo.run import train

    train(config, Display())
    return 0


def make_config(given: dict[str, Any]) -> TrainConfig:
    """The configuration of the options that were given: on top of the demo's where no model is named."""
    return TrainConfig(**given) if given.get("model") is not None else TrainConfig(**(DEMO | given))
