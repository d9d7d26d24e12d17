"""`grpo audit`: can the rewards be had without an answer?"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from grpo.commands.data import data_settings
from grpo.data.load import DataConfig
from grpo.errors import InputError
from grpo.options import add_options

if TYPE_CHECKING:
    from rich.console import Console

    from grpo.audit import AuditReport

HELP = "find out whether the rewards can be had without an answer"
DESCRIPTION = (
    "Judge adversarial completions of the data with the rewards, before any training: which kinds are rewarded, what "
    "length alone does, and which right answers are refused. Exit status 1 when a non-answer gets what a right answer "
    "gets."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("audit")
    group.add_argument("--config", metavar="FILE.yaml", help="take data and rewards from options of grpo train")
    group.add_argument("--reward", nargs="+", action="extend", metavar="TEXT", help="rewards to add up")
    group.add_argument("--reward-weights", nargs="+", type=float, metavar="X", help="a weight for each; default: 1")
    group.add_argument("--answer-column", metavar="TEXT", help="column of right answers; default: solution, or answer")
    group.add_argument("--tasks", type=int, default=20, metavar="N", help="most tasks to try (default: 20)")
    group.add_argument(
        "--tolerance", type=float, default=0.0, metavar="X",
        help="share of the tasks at which a non-answer may be right by chance (default: 0)",
    )  # fmt: skip
    group.add_argument("--model", metavar="TEXT", help="whose tokens count; default: four characters are one")
    group.add_argument("--json", action="store_true", help="print the report as JSON")
    add_options(parser, DataConfig)


def run(arguments: argparse.Namespace) -> int:
    config, settings = data_settings(arguments, "reward", "reward_weights")
    rewards, weights = settings.get("reward"), settings.get("reward_weights")
    if not rewards:
        raise InputError("--reward is missing: name the rewards to audit, or give --config")
    if weights is not None and len(weights) != len(rewards):
        raise InputError(f"--reward-weights has {len(weights)} numbers for {len(rewards)} rewards: give one each")

    import json

    from rich.console import Console

    from grpo.audit import audit
    from grpo.data.load import load_data
    from grpo.data.loaders import require_columns
    from grpo.groups import Task
    from grpo.rewards import find_rewards

    tokenizer = _tokenizer(arguments.model) if arguments.model else None
    judges = find_rewards(rewards)
    problems = load_data(config, tokenizer).train
    for reward in judges:
        require_columns(problems, reward.columns, f"reward {reward.name}")
    rules = tuple(reward.rule for reward in judges)
    report = audit(
        judges,
        [Task(p.where, None, rules, p.prompt, (), p.columns) for p in problems],
        weights,
        arguments.answer_column,
        arguments.tasks,
        arguments.tolerance,
        tokenizer and (lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]),
        config.seed,
    )
    if arguments.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        show(report, Console(highlight=False, markup=False))
    return 0 if report.passed else 1


def show(report: AuditReport, console: Console) -> None:
    """The report as tables; completions in it are made safe to print."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from grpo.console import printable

    names = [rule.rpartition("@")[0] or rule for rule in report.rules]
    several = names if len(names) > 1 else []
    kinds = Table("mean and highest total", "mean", "highest", "full score", *several, box=box.SIMPLE, show_edge=False)
    for column in kinds.columns[1:]:
        column.justify = "right"
    for role, title in (("right", "right answers"), ("non-answer", "no answers"), ("unclear", "matters of taste")):
        kinds.add_section()
        kinds.add_row(title, style="bold")
        for kind in (kind for kind in report.kinds if kind.role == role):
            wins = role == "non-answer" and max(kind.full_share, kind.beats_share) > 0
            values = [_number(kind.mean), _number(kind.highest), f"{kind.full_share:.0%}"]
            values += map(_number, kind.rewards) if several else []
            name = kind.name.removeprefix("right: ")
            kinds.add_row(Text(f"  {name}", no_wrap=True), *values, style="bold red" if wins else "")
    heads = ("characters of padding", "before a right answer", "after it", "alone")
    lengths = Table(*heads, box=box.SIMPLE, show_edge=False)
    for point in report.lengths:
        lengths.add_row(f"{point.characters:,}", _number(point.before), _number(point.after), _number(point.alone))
    console.print(Text(f"{', '.join(report.rules)} on {report.tasks} tasks\n"))
    console.print(kinds)
    console.print(lengths)
    refused = report.refused
    console.print(Text(f"right answers that no form gets the full score for: {len(refused)} of {report.tasks}"))
    for refusal in refused[:5]:
        what = f"  {refusal.task}: {refusal.answer[:60]!r} gets {_number(refusal.total)}"
        console.print(Text(printable(what)), soft_wrap=True)
    top = report.highest_non_answer
    if top is not None:
        shown = printable(top.example[:100])
        line = f"the highest reward of a non-answer is {_number(top.highest)} ({top.name}), such as: {shown}"
        console.print(Text(line), soft_wrap=True)
    for finding in report.findings:
        console.print(Text(f"FAIL {printable(finding)}", style="bold red"), soft_wrap=True)
    if report.passed:
        console.print(Text("no non-answer gets what a right answer gets"))


def _tokenizer(model: str):
    from grpo.config import TrainConfig
    from grpo.policy import load_tokenizer, model_path
    from grpo.quiet import quiet_libraries

    quiet_libraries()
    return load_tokenizer(model_path(TrainConfig(model=model)))[1]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
