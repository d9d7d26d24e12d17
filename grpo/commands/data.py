"""`grpo data`: shows what the model will see of a data set."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from grpo.data.load import DataConfig
from grpo.errors import InputError
from grpo.options import add_options, given_options

HELP = "show what the model will see of the data, token by token"
DESCRIPTION = (
    "Read the data as `grpo train` does with the same options, say what was dropped, and show prompts as the model "
    "gets them, with the lengths of all."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE.yaml", help="take model, data and rewards from options of grpo train")
    parser.add_argument("--model", metavar="TEXT", help="whose tokenizer and chat template; default: the embedded one")
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="prompts to show (default: 3)")
    parser.add_argument("--reward", nargs="+", action="extend", metavar="TEXT", help="check its columns")
    add_options(parser, DataConfig)


def data_settings(arguments: argparse.Namespace, *others: str) -> tuple[DataConfig, dict[str, Any]]:
    """The data's options, of the command line or else of the file of `--config`, and the `others` that are given."""
    from grpo.config import TrainConfig
    from grpo.options import read_options

    settings = read_options(arguments.config, TrainConfig) if arguments.config else {}
    settings |= given_options(arguments, DataConfig)
    given = {name: getattr(arguments, name) for name in others}
    settings |= {name: value for name, value in given.items() if value is not None}
    names = {field.name for field in dataclasses.fields(DataConfig)}
    config = DataConfig(**{name: value for name, value in settings.items() if name in names})
    return config, {name: settings[name] for name in others if name in settings}


def run(arguments: argparse.Namespace) -> int:
    config, settings = data_settings(arguments, "model", "reward")
    if arguments.rows < 0:
        raise InputError(f"--rows {arguments.rows}: must be 0 or more")

    from grpo.quiet import quiet_libraries

    quiet_libraries()

    from grpo.config import TrainConfig
    from grpo.console import Display, printable
    from grpo.data.load import load_data, prompt_lengths
    from grpo.data.loaders import require_columns
    from grpo.data.preview import length_lines, preview, preview_lines
    from grpo.policy import load_tokenizer, model_path
    from grpo.rewards import find_rewards

    _, tokenizer = load_tokenizer(model_path(TrainConfig(model=settings.get("model"))))
    data = load_data(config, tokenizer)
    problems = [*data.train, *data.held_out]
    say = Display().say
    for line in data.report:
        say(printable(line))
    for line in length_lines(prompt_lengths(problems, tokenizer)):
        say(line)
    for reward in find_rewards(settings.get("reward", ())):
        require_columns(problems, reward.columns, f"reward {reward.name}")
        say(f"reward {reward.name} has its columns: {', '.join(reward.columns) or 'it needs none'}")
    for problem in data.train[: arguments.rows]:
        for line in preview_lines(preview(problem, tokenizer)):
            say(line)
    return 0
