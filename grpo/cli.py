"""The `grpo` command: one file in `grpo/commands` for each of its subcommands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from grpo.errors import InputError
from grpo.options import Parser, one_line

COMMANDS = {
    "audit": "grpo.commands.audit",
    "data": "grpo.commands.data",
    "train": "grpo.commands.train",
    "plan": "grpo.commands.plan",
    "eval": "grpo.commands.evaluate",
    "merge": "grpo.commands.merge",
    "report": "grpo.commands.report",
    "watch": "grpo.commands.watch",
    "sft": "grpo.commands.sft",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 2 for what a user can put right, others as the command says."""
    arguments = build_parser().parse_args(_dashed(sys.argv[1:] if argv is None else argv))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a completion may hold characters that the terminal's encoding lacks
            stream.reconfigure(errors="backslashreplace")
    try:
        return arguments.run(arguments)
    except InputError as error:
        print(f"grpo {arguments.command}: {one_line(str(error))}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"grpo {arguments.command}: {one_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"grpo {arguments.command}: interrupted", file=sys.stderr)
        return 130


def build_parser() -> Parser:
    parser = Parser(prog="grpo", description="LoRA GRPO for causal language models with verifiable rewards.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = importlib.import_module(module)
        subparser = commands.add_parser(name, help=command.HELP, description=command.DESCRIPTION, allow_abbrev=False)
        subparser.set_defaults(run=command.run, parser=subparser)
        command.add_arguments(subparser)
    return parser


def _dashed(argv: Sequence[str]) -> list[str]:
    """`--loss_type dapo` is accepted as `--loss-type dapo`: TRL's users know the names with underscores."""

    def dashed(word: str) -> str:
        name, equals, value = word.partition("=")
        return name.replace("_", "-") + equals + value if word.startswith("--") else word

    return [dashed(word) for word in argv]
