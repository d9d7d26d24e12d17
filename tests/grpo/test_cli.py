"""The command line: what it accepts, and that bad input gets one line, status 2 and nothing written."""

import dataclasses
import json
import subprocess
import sys

import pytest

from grpo.cli import build_parser, main
from grpo.commands.train import make_config
from grpo.config import DEMO, TrainConfig
from grpo.options import given_options


def parse(*words: str) -> TrainConfig:
    return make_config(given_options(build_parser().parse_args(["train", *words]), TrainConfig))


def test_without_options_it_is_the_demo():
    assert parse() == TrainConfig(**DEMO)
    assert parse("--max-steps", "3") == TrainConfig(**(DEMO | {"max_steps": 3}))


def test_with_a_model_it_is_the_defaults():
    assert parse("--model", "m", "--data", "d") == TrainConfig(model="m", data="d")


def test_options_are_read_in_their_types():
    config = parse(
        "--model", "m", "--data", "d", "--reward", "numeric", "--reward", "format", "--reward-weights", "1", ".5",
        "--learning-rate", "1e-4", "--no-report-kl", "--eval-size", "7", "--lora-target-modules", "q_proj", "v_proj",
    )  # fmt: skip
    assert config.reward == ("numeric", "format")
    assert config.reward_weights == (1.0, 0.5)
    assert (config.learning_rate, config.report_kl, config.eval_size) == (1e-4, False, 7)
    assert config.lora_target_modules == ("q_proj", "v_proj")


def test_the_help_explains_every_option(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(TrainConfig):
        assert f"--{field.name.replace('_', '-')}" in text


def test_help_loads_neither_torch_nor_transformers():
    code = (
        "import sys, grpo, grpo.cli\n"
        "try: grpo.cli.main(['train', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'transformers', 'peft'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "words", [[], ["--version-of-nothing"], ["train", "--max-step", "3"], ["train", "--seed", "x"]]
)
def test_wrong_usage_is_one_line(words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


ROWS = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(8)]
BAD_INPUT = {
    "missing file": (None, [], "does not exist"),
    "empty file": ([], [], "is empty"),
    "malformed line": ([ROWS[0], "{"], [], "line 2 is not valid JSON"),
    "no prompt": ([{"question": "1"}], [], "no column 'prompt'"),
    "no answer": ([*ROWS, {"prompt": "1"}], [], "line 9 has no column 'answer', which reward numeric needs"),
    "answer not a number": ([*ROWS, {"prompt": "1", "answer": "one"}], [], "is 'one', which is not a number"),
    "prompt too long": ([*ROWS, {"prompt": "1" * 70, "answer": 1}], [], "passes the model's maximum of 64"),
    "one row": (ROWS[:1], [], "add rows, lower --eval-size, or give --eval-data"),
    "missing eval file": (ROWS, ["--eval-data", "nothing.jsonl"], "nothing.jsonl does not exist"),
    "unknown reward": (ROWS, ["--reward", "numerik"], "choose from choice, code, format"),
    "impossible option": (ROWS, ["--temperature", "0"], "--temperature 0.0: must be a positive number"),
    "loss option": (ROWS, ["--epsilon_high", "-1"], "epsilon_high"),
    "unknown module": (ROWS, ["--lora-target-modules", "nothing"], "--lora-target-modules nothing"),
    "output in a file": (ROWS, ["--output-dir", "data.jsonl"], "is a file"),
    "output below a file": (ROWS, ["--output-dir", "data.jsonl/out"], "cannot be written to"),
    "output not empty": (ROWS, ["--output-dir", "."], "is not empty: choose another, or add --overwrite-output-dir"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_status_2_and_nothing_written(case, model_folder, tmp_path, monkeypatch, capsys):
    rows, options, message = BAD_INPUT[case]
    monkeypatch.chdir(tmp_path)
    if rows is not None:
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        (tmp_path / "data.jsonl").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    status = main(
        ["train", "--model", str(model_folder), "--data", "data.jsonl", "--max-completion-length", "4", *options]
    )
    printed, error = capsys.readouterr()
    assert (status, len(error.splitlines())) == (2, 1), error
    assert printed == "", "nothing is started before everything is checked"
    assert message in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", [None, "config", "nonsense"])
def test_a_model_that_cannot_be_loaded_is_one_line(content, data_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "model"
    if content:
        folder.mkdir()
        (folder / "config.json").write_text('{"model_type": "llama"}' if content == "config" else "nonsense")
    before = sorted(tmp_path.rglob("*"))
    assert main(["train", "--model", str(folder), "--data", str(data_file)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, error
    assert f"--model {folder}" in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"), [(["--data", "x"], "--data needs --model"), (["--model", "x"], "--model needs --data")]
)
def test_a_model_and_its_data_belong_together(words, message, capsys):
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_misspelt_option_is_met_with_the_right_one(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--learning-rat", "1"])
    assert "unrecognized argument --learning-rat: did you mean --learning-rate?" in capsys.readouterr().err
