"""docs/report.md describes every metric that a run writes."""

import json
import re
from pathlib import Path

import pytest

from grpo import TrainConfig, build
from grpo.console import Display
from grpo.rewards import find_rewards

PAGE = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b), "solution": str(a + b)} for a in range(10, 16) for b in (7, 8)]
SMALL = {
    "max_steps": 3, "max_completion_length": 4, "num_generations": 4, "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1, "eval_size": 2, "report_to": ("none",),
}  # fmt: skip


def failing(completions, **_):
    """Judges nothing but the empty completions that a run begins with."""
    if any(completions):
        raise ValueError("no verdict")
    return [0.0] * len(completions)


def documented() -> list[re.Pattern]:
    """The names in the first column of the page's tables of metrics, as patterns."""
    cells = re.findall(r"^\| (`[^|]*) \|", PAGE.partition("## Every metric")[2], re.MULTILINE)
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    cells_with_ranges = [cell for cell in cells if " ... " in cell]
    names += [f"accuracy/length_q{n}" for n in range(1, 5) if cells_with_ranges]
    return [
        re.compile(re.escape(name).replace("NAME", "[^/]+").replace("PART", "[^/]+").replace("_K", r"_\d+"))
        for name in names
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_iterations": 2, "loss_type": "cispo", "epsilon_high": 5.0, "kl_estimator": "k2", "beta": 0.1},
        {"beta": 0.1, "kl_in_reward": True, "dead_groups": "resample", "reference_column": "solution"},
        {"loss_type": "vespo", "overlong_cache": 2, "dead_groups": "drop", "report_kl": False, "eval_samples": 2},
    ],
)
def test_every_metric_of_a_run_is_described(tmp_path, options):
    config = TrainConfig(**SMALL | options, output_dir=str(tmp_path / "run"), reward=("numeric", "format"))
    rewards = None if options else [*find_rewards(("numeric", "format")), failing]
    trainer = build(config, rewards=rewards, train_data=ROWS, display=Display.silent())
    trainer.train()
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    names = {name for row in rows for name in row}
    known = documented()
    assert len(names) > 30
    assert [name for name in sorted(names) if not any(pattern.fullmatch(name) for pattern in known)] == []


def test_every_file_of_a_run_is_described():
    from grpo.output import FILES

    assert [name for name in FILES if f"`{name}`" not in PAGE] == []
