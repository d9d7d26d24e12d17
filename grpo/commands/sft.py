"""`grpo sft`: a supervised warm start."""

from __future__ import annotations

import argparse
import sys

from grpo.options import add_options, given_options, read_options
from grpo.sft_config import SFTRunConfig

HELP = "supervised warm start on prompts with their completions"
DESCRIPTION = (
    "Train LoRA adapters (or with --full the model) to write the completions of the data after its prompts; only "
    "completion tokens count. `grpo train --adapter FOLDER` goes on from what it writes."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE.yaml", help="options as `name: value` lines; flags override them")
    add_options(parser, SFTRunConfig)


def run(arguments: argparse.Namespace) -> int:
    given = read_options(arguments.config, SFTRunConfig) if arguments.config else {}
    config = SFTRunConfig(**given | given_options(arguments, SFTRunConfig))

    from grpo.quiet import quiet_libraries
    from grpo.threads import set_threads, wait_politely

    wait_politely()
    quiet_libraries()
    set_threads()

    from grpo.interrupt import Interrupted
    from grpo.sft_run import run_sft

    try:
        run_sft(config)
    except Interrupted as interrupted:
        print(f"grpo sft: {interrupted}", file=sys.stderr)
        return interrupted.status
    return 0
