"""`grpo eval`: an adapter beside its base on held-out problems."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from grpo.config import DEMO, TrainConfig
from grpo.data.load import DataConfig
from grpo.errors import InputError
from grpo.options import add_options, given_options, typed_options

HELP = "accuracy of an adapter beside that of its base"
DESCRIPTION = (
    "Greedy accuracy, and with --samples pass@k and maj@k, of the base model and of an adapter, with 95% intervals and "
    "the difference on the same questions. Give a run's folder or one of its checkpoints, and the rest is that run's: "
    "its model, data and rewards, its held-out problems. Or give --model, --data and --reward. All of a --data that is "
    "given is asked, without --eval-data or --eval-size."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", nargs="?", type=Path, metavar="RUN", help="folder of a run, or one of its checkpoints"
    )
    parser.add_argument("--model", metavar="TEXT", help="folder or Hub id of the base model; default: the embedded one")
    parser.add_argument("--adapter", metavar="TEXT", help="folder of a PEFT adapter; without one, the base alone")
    parser.add_argument("--reward", nargs="+", action="extend", metavar="TEXT", help="the first decides what is right")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="answers to each question for pass@k")
    parser.add_argument("--k", type=int, nargs="+", metavar="N", help="the k of pass@k and maj@k; default: 1 and N")
    parser.add_argument("--temperature", type=float, metavar="X", help="of those answers (default: the run's, or 1)")
    parser.add_argument("--max-completion-length", type=int, metavar="N", help="default: the run's, or 256")
    parser.add_argument("--rollout-batch-size", type=int, metavar="N", help="sequences generated at once")
    parser.add_argument("--dtype", metavar="TEXT", help="dtype of the base; default: the run's, or auto")
    parser.add_argument("--load-in-4bit", action="store_true", help="quantise the base to nf4")
    parser.add_argument("--limit", type=int, metavar="N", help="ask the first N questions only")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write every figure and every answer there")
    add_options(parser, DataConfig)


def run(arguments: argparse.Namespace) -> int:
    config = configured(arguments)
    ks = chosen_ks(arguments.samples, arguments.k)

    from grpo.quiet import quiet_libraries
    from grpo.threads import set_threads, wait_politely

    wait_politely()
    quiet_libraries()
    set_threads()

    from grpo.console import Display
    from grpo.evaluation_run import evaluate_config
    from grpo.journal import write_atomically

    held_out = arguments.run_dir is not None and "data" not in given_options(arguments, DataConfig)
    result = evaluate_config(config, arguments.samples, ks, arguments.limit, held_out, Display())
    if arguments.output is not None:
        try:
            write_atomically(arguments.output, json.dumps(result, indent=1) + "\n")
        except OSError as error:
            raise InputError(f"--output {arguments.output} cannot be written: {error.strerror}") from error
    return 0


def configured(arguments: argparse.Namespace) -> TrainConfig:
    """The run's options with those that are given over them, or the given ones."""
    given: dict[str, Any] = given_options(arguments, DataConfig)
    for name in ("model", "adapter", "temperature", "max_completion_length", "rollout_batch_size", "dtype"):
        if getattr(arguments, name) is not None:
            given[name] = getattr(arguments, name)
    if arguments.reward:
        given["reward"] = tuple(arguments.reward)
        given["reward_weights"] = None
    if arguments.load_in_4bit:
        given["load_in_4bit"] = True
    if arguments.run_dir is None:
        if "data" not in given and "model" in given:
            raise InputError("give a run's folder, or --model and --data")
        return TrainConfig(**(given if "model" in given else DEMO | given))
    return TrainConfig(**options_of(arguments.run_dir, "data" in given) | given)


def options_of(folder: Path, other_data: bool) -> dict[str, Any]:
    """The options of the run that `folder` is or is a checkpoint of, with its adapter; raises InputError."""
    from grpo.resume import saved_options

    run = folder if (folder / "train_config.json").is_file() else folder.parent
    if not (run / "train_config.json").is_file():
        raise InputError(f"{folder} is no folder of a run: there is no train_config.json")
    saved = typed_options(saved_options(run), TrainConfig, f"{run}/train_config.json")
    if other_data:
        saved |= {"eval_data": None, "eval_size": None}
    return saved | {"adapter": str(folder)}


def chosen_ks(samples: int, ks: list[int] | None) -> list[int]:
    """Raises InputError where there are fewer samples than a k needs."""
    if samples < 0:
        raise InputError(f"--samples {samples}: must be 0 or more")
    if samples == 0:
        if ks:
            raise InputError("--k needs --samples: the answers that k of are drawn from")
        return []
    for k in ks or ():
        if not 1 <= k <= samples:
            raise InputError(f"--k {k}: must be from 1 to --samples ({samples})")
    return sorted(set(ks or (1, samples)))
