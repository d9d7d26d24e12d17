"""The `grpo` command. Its options are the fields of TrainConfig."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

from grpo.config import DEMO, TrainConfig
from grpo.errors import InputError
from grpo.threads import set_threads, wait_politely


class Parser(argparse.ArgumentParser):
    """Reports a wrong option in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_one_line(message)} ({self.prog} --help lists the options)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 2 for what a user can put right, 1 for failed training."""
    arguments = vars(build_parser().parse_args(_dashed(sys.argv[1:] if argv is None else argv)))
    arguments.pop("command")
    try:
        return _train(make_config(arguments))
    except InputError as error:
        print(f"grpo train: {_one_line(str(error))}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"grpo train: {_one_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("grpo train: interrupted; nothing was written", file=sys.stderr)
        return 130


def make_config(given: dict[str, Any]) -> TrainConfig:
    """The configuration of the options that were given: on top of the demo's where no model is named."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return TrainConfig(**given) if "model" in given else TrainConfig(**(DEMO | given))


def build_parser() -> Parser:
    parser = Parser(prog="grpo", description="LoRA GRPO for causal language models with verifiable rewards.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    train = commands.add_parser(
        "train",
        help="train LoRA adapters",
        description="Train LoRA adapters with GRPO. Without options, a tiny model that ships with this package "
        "learns to add, on a CPU, in minutes. "
        "For your own model: --model MODEL --data FILE.jsonl --reward NAME.",
        allow_abbrev=False,
    )
    types_of = typing.get_type_hints(TrainConfig)
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(TrainConfig):
        name = field.metadata["group"]
        group = groups.get(name) or groups.setdefault(name, train.add_argument_group(name))
        group.add_argument("--" + field.name.replace("_", "-"), **_argument(field, types_of[field.name]))
    return parser


def _argument(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    """How argparse reads a field. An option that is not given is left out: defaults are in one place."""
    if typing.get_origin(hint) is types.UnionType:
        hint = next(t for t in typing.get_args(hint) if t is not type(None))
    options: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(field)}
    if hint is bool:
        return options | {"action": argparse.BooleanOptionalAction if field.default else "store_true"}
    if typing.get_origin(hint) is tuple:
        options |= {"nargs": "+", "action": "extend"}
        hint = typing.get_args(hint)[0]
    if field.metadata["choices"]:
        return options | {"choices": field.metadata["choices"]}
    return options | {"type": hint, "metavar": {str: "TEXT", int: "N", float: "X"}[hint]}


def _help(field: dataclasses.Field[Any]) -> str:
    shown = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
    notes = [] if shown is None or shown is False else [f"default: {shown}"]
    if field.name in DEMO:
        notes.append(f"without --model: {DEMO[field.name]}")
    return field.metadata["help"].replace("%", "%%") + (f" ({'; '.join(notes)})" if notes else "")


def _train(config: TrainConfig) -> int:
    wait_politely()

    import huggingface_hub.utils.logging as hub_logging
    from transformers.utils import logging

    from grpo.console import Display
    from grpo.run import train

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a completion may hold characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    warnings.filterwarnings("ignore", category=FutureWarning)  # between versions of transformers and peft
    warnings.filterwarnings("ignore", message="fan_in_fan_out")  # PEFT puts it right itself
    hub_logging.set_verbosity_error()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    set_threads()
    train(config, Display())
    return 0


def _dashed(argv: Sequence[str]) -> list[str]:
    """`--loss_type dapo` is accepted as `--loss-type dapo`: TRL's users know the names with underscores."""

    def dashed(word: str) -> str:
        name, equals, value = word.partition("=")
        return name.replace("_", "-") + equals + value if word.startswith("--") else word

    return [dashed(word) for word in argv]


def _one_line(text: str) -> str:
    return " ".join(text.split())
