"""What a person sees of a run that another process trains."""

import io
import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from rich.console import Console

from grpo.cli import main
from grpo.watch import Tail, Watch, sparkline, time_left

SAMPLE = {"step": 3, "split": "probe", "prompt": "1+2=", "completion": "3", "rewards": {"numeric": 1.0, "format": None}}
ALARM = {"step": 2, "name": "drift", "severity": "warning", "message": "the KL is 3.00", "advice": "lower it"}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "train_config.json").write_text(json.dumps({"max_steps": 10}))
    write(tmp_path, "metrics", *({"step": n, "reward": n / 10, "time/step": 2.0} for n in range(1, 4)))
    return tmp_path


def write(run, name: str, *rows: dict) -> None:
    with open(run / f"{name}.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def picture(run) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(Watch(run).picture())
    return console.export_text(styles=True)


def test_curves_alarms_answers_and_the_time_left(run):
    write(run, "samples", SAMPLE)
    write(run, "alarms", ALARM)
    text = picture(run)
    assert "step 3 of 10" in text and "about 0:00:14 left" in text
    assert "▁▅█" in text and "0.300" in text
    assert "warning: drift (step 2)" in text and "the KL is 3.00. Try: lower it" in text
    assert "1+2= → 3  numeric 1" in text.replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\x1b[36m", "")


def test_a_completion_cannot_steer_the_terminal_nor_the_markup(run):
    write(run, "samples", SAMPLE | {"completion": "\x1b[2J[bold]x[/bold]\n\x07\u202eevil", "prompt": "\x1b]0;t\x07"})
    text = picture(run)
    assert "\x1b[2J" not in text and "\x07" not in text and "\u202e" not in text
    assert r"\x1b[2J[bold]x[/bold]\n\x07" in text


def test_a_run_that_has_only_begun(run):
    (run / "metrics.jsonl").unlink()
    assert "step 0 of 10" in picture(run)


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["watch", str(tmp_path)]) == 2
    assert "there is no train_config.json" in capsys.readouterr().err


def test_without_a_terminal_it_looks_once(run, capsys):
    assert main(["watch", str(run)]) == 0
    assert "step 3 of 10" in capsys.readouterr().out
    assert main(["watch", str(run), "--interval", "0"]) == 2


def test_in_a_terminal_it_follows_the_run_to_its_end(run):
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "grpo", "watch", str(run), "--interval", "0.05"]
    with subprocess.Popen(command, stdout=terminal, stdin=terminal, env=os.environ | {"TERM": "xterm"}) as watching:
        os.close(terminal)
        try:
            wait_for(b"step 3 of 10", screen)
            write(run, "metrics", {"step": 10, "reward": 1.0})
            wait_for(b"step 10 of 10", screen)
            assert watching.wait(30) == 0
        finally:
            watching.kill()
            os.close(screen)


def wait_for(text: bytes, screen: int, limit_s: float = 60.0) -> None:
    seen, deadline = b"", time.monotonic() + limit_s
    while text not in seen:
        assert select.select([screen], [], [], max(0.0, deadline - time.monotonic()))[0], seen[-4096:]
        seen += os.read(screen, 4096)


def test_rows_are_read_as_they_come_and_half_ones_are_left(tmp_path):
    tail = Tail(tmp_path / "metrics.jsonl")
    tail.read()
    assert tail.rows == []
    write(tmp_path, "metrics", {"step": 1})
    with open(tail.path, "a") as file:
        file.write('{"step"')
    tail.read()
    assert tail.rows == [{"step": 1}]
    with open(tail.path, "a") as file:
        file.write(': 2}\n{"step": 3}\n')
    tail.read()
    assert [row["step"] for row in tail.rows] == [1, 2, 3]


def test_a_file_that_was_written_anew_is_read_anew(tmp_path):
    tail = Tail(tmp_path / "metrics.jsonl")
    write(tmp_path, "metrics", {"step": 1}, {"step": 2})
    tail.read()
    (tmp_path / "new").write_text('{"step": 1}\n{"step": 5}\n{"step": 6}\n')
    (tmp_path / "new").rename(tail.path)
    tail.read()
    assert [row["step"] for row in tail.rows] == [1, 5, 6]


def test_sparklines_go_from_the_lowest_to_the_highest():
    assert sparkline([0, 7]) == "▁█"
    assert sparkline([3, 3, 3]) == "▁▁▁"
    assert sparkline(range(1000), width=8) == "▁▂▃▄▅▆▇█"


def test_the_time_left_counts_evaluations():
    rows = [{"step": n, "time/step": 1.0} for n in range(1, 11)]
    rows[-1]["time/evaluation"] = 10.0
    assert time_left(rows, 20) == 20.0
    assert time_left([], 20) is None
