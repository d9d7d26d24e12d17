"""Reading the folders of runs."""

import pytest

from grpo.errors import InputError
from grpo.report.runs import read_runs
from tests.grpo.report.conftest import RunFolder


def test_a_run_is_read(tmp_path):
    (run,) = read_runs([RunFolder().write(tmp_path / "first")])
    assert (run.name, run.steps, len(run.rows), run.config["beta"]) == ("first", 50, 51, 0.1)
    assert len(run.samples.pairs["held_out"]) == 10
    assert run.alarms == []


def test_a_run_that_is_being_written_is_read_as_far_as_it_is(tmp_path):
    folder = RunFolder(samples=None, config=None).write(tmp_path / "run")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 51, "rew')
    (run,) = read_runs([folder])
    assert run.steps == 50
    assert (run.config, run.environment, run.samples.pairs) == ({}, {}, {})


def test_runs_in_folders_of_one_name_are_told_apart_by_their_paths(tmp_path):
    folders = [RunFolder().write(tmp_path / name / "run") for name in ("a", "b")]
    assert [run.name for run in read_runs(folders)] == [str(folder) for folder in folders]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metrics.jsonl", "", "has no metrics yet"),
        ("metrics.jsonl", "{\n", "metrics.jsonl, line 1 is not JSON"),
        ("metrics.jsonl", "[1]\n", "metrics.jsonl, line 1 is a list; it must be a JSON object"),
        ("metrics.jsonl", '{"step": "x"}\n', "line 1: step is 'x'; it must be a whole number"),
        ("alarms.jsonl", "{}\n", "alarms.jsonl, line 1: step is None"),
        ("train_config.json", "{", "train_config.json is not JSON"),
    ],
)
def test_a_file_that_no_run_writes_is_named(tmp_path, name, text, message):
    folder = RunFolder().write(tmp_path / "run")
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=message):
        read_runs([folder])


def test_a_folder_without_metrics_is_no_run(tmp_path):
    with pytest.raises(InputError, match=r"there is no metrics\.jsonl; give the folder of a run"):
        read_runs([tmp_path])
