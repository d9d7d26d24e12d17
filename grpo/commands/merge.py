"""`grpo merge`: an adapter becomes a model of its own."""

from __future__ import annotations

import argparse
from pathlib import Path

from grpo.config import DTYPES

HELP = "merge an adapter into its base model"
DESCRIPTION = "Write the base model with the adapter merged into its weights, as plain transformers loads it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("adapter", type=Path, metavar="ADAPTER", help="folder of the adapter: a run, or a checkpoint")
    parser.add_argument("output", type=Path, metavar="FOLDER", help="folder to write")
    parser.add_argument("--model", metavar="TEXT", help="the base model; default: the one that the adapter names")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the weights written; auto: the base's")


def run(arguments: argparse.Namespace) -> int:
    from grpo.quiet import quiet_libraries

    quiet_libraries()

    from grpo.export import merge_adapter

    path = merge_adapter(arguments.adapter, arguments.output, arguments.model, arguments.dtype)
    print(f"merged model written to {path}")
    return 0
