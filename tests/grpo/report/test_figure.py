"""The curves of runs as a picture."""

import json

import pytest

from grpo.cli import main
from grpo.report.figure import series

ROWS = [
    {"step": 0, "eval_accuracy": 0.4, "eval_accuracy_low": 0.3, "eval_accuracy_high": 0.5},
    {"step": 1, "reward": 0.3, "kl": 0.0, "completions/mean_length": 4.0},
    {"step": 2, "reward": 0.5, "kl": 0.1, "completions/mean_length": 5.0, "eval_accuracy": 0.6,
     "eval_accuracy_low": 0.5, "eval_accuracy_high": 0.7},
]  # fmt: skip


@pytest.fixture
def run_dir(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder


def test_a_series_has_the_steps_at_which_it_was_measured():
    assert series(ROWS, "eval_accuracy") == ([0, 2], [0.4, 0.6])
    assert series(ROWS, "nothing") == ([], [])


@pytest.mark.parametrize("kind", [".png", ".svg"])
def test_it_is_drawn(run_dir, tmp_path, kind):
    out = tmp_path / f"curves{kind}"
    assert main(["report", str(run_dir), "--figure", str(out)]) == 0
    assert out.stat().st_size > 10_000
    if kind == ".svg":
        assert out.read_text().count("<path") > 40


def test_what_cannot_be_drawn_is_one_line(run_dir, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "metrics.jsonl").write_text("")
    for words, message in (
        ([str(tmp_path), "--figure", "x.png"], "there is no metrics.jsonl"),
        ([str(empty), "--figure", "x.png"], "empty has no metrics yet"),
        ([str(run_dir), "--figure", "x.gif"], "must end with .png, .svg or .pdf"),
        ([str(run_dir), "--figure", str(tmp_path / "no/x.png")], "cannot be written"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
