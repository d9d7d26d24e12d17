"""Whole runs through the command line, and what they leave behind."""

import json
import os
import subprocess
import sys

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from grpo.cli import main
from grpo.config import TrainConfig
from grpo.errors import InputError
from grpo.evaluate import Evaluation
from grpo.output import check_output_dir, write_run
from grpo.run import load_problems, show_sample
from tests.grpo.conftest import task, tiny_policy
from tests.grpo.test_console import display

FILES = ["adapter_config.json", "adapter_model.safetensors", "metrics.jsonl", "samples.jsonl", "train_config.json"]


def read_jsonl(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def train(model_folder, data_file, out, *options: str) -> int:
    return main(
        ["train", "--model", str(model_folder), "--data", str(data_file), "--output-dir", str(out), "--max-steps", "2",
         "--max-completion-length", "3", "--learning-rate", "1e-2", "--num-generations", "4",
         "--per-device-train-batch-size", "4", "--gradient-accumulation-steps", "2", *options]
    )  # fmt: skip


@pytest.fixture(autouse=True)
def restore_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_embedded_default_trains_and_its_adapter_loads_with_plain_peft(tmp_path):
    """`python -m grpo train`, three steps of it, as a person runs it: in a process and a folder of its own."""
    words = [sys.executable, "-m", "grpo", "train", "--max-steps", "3"]
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    for part in ("accuracy before: ", "step 1/3  reward ", "  kl ", "  tok/s ", "accuracy after: ", "sample: "):
        assert part in ran.stdout
    (out,) = (tmp_path / "runs").iterdir()
    assert f"adapter written to runs/{out.name}" in ran.stdout
    assert sorted(path.name for path in out.iterdir()) == FILES

    from grpo.embedded import MODEL_PATH

    base = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
    ids = torch.tensor([[5, 6, 7]])
    plain = base(input_ids=ids).logits.detach()
    adapted = PeftModel.from_pretrained(base, str(out))
    assert (adapted(input_ids=ids).logits - plain).abs().max() > 1e-4
    metrics = read_jsonl(out / "metrics.jsonl")
    assert [row["step"] for row in metrics] == [0, 1, 2, 3]
    assert 0.2 < metrics[0]["eval_accuracy"] < 0.7
    samples = read_jsonl(out / "samples.jsonl")
    assert sum(s["split"] == "held_out" and s["step"] == 3 for s in samples) >= 500


def test_a_model_and_a_file_of_ones_own(model_folder, data_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert train(model_folder, data_file, out, "--eval-size", "7", "--reward", "numeric", "format", "--seed", "3") == 0
    printed = capsys.readouterr().out
    assert "on 23 problems: 2 steps of 2 questions x 4 completions" in printed
    assert "of 7 problems" in printed
    config = json.loads((out / "train_config.json").read_text())
    assert (config["seed"], config["reward"], config["output_dir"]) == (3, ["numeric", "format"], str(out))
    samples = read_jsonl(out / "samples.jsonl")
    trained = {s["question"] for s in samples if s["split"] == "train"}
    held_out = {s["question"] for s in samples if s["split"] == "held_out"}
    assert len(held_out) == 7 and not trained & held_out
    assert set(samples[0]["rewards"]) == {"numeric", "format"}
    adapter = json.loads((out / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(model_folder)
    assert sorted(os.listdir(tmp_path)) == ["out", data_file.name]


def test_chat_prompts(model_folder, tmp_path):
    data, out = tmp_path / "chat.jsonl", tmp_path / "out"
    rows = [{"prompt": [{"role": "user", "content": f"{n}+1"}], "answer": n + 1} for n in range(12)]
    data.write_text("\n".join(map(json.dumps, rows)))
    assert train(model_folder, data, out) == 0
    assert read_jsonl(out / "samples.jsonl")[0]["prompt"][0]["role"] == "user"


def test_the_seed_decides_the_run(model_folder, data_file, tmp_path):
    outs = [tmp_path / name for name in "abc"]
    for out, seed in zip(outs, "112", strict=True):
        assert train(model_folder, data_file, out, "--seed", seed) == 0
    adapters = [(out / "adapter_model.safetensors").read_bytes() for out in outs]
    samples = [(out / "samples.jsonl").read_text() for out in outs]
    assert adapters[0] == adapters[1] != adapters[2]
    assert samples[0] == samples[1] != samples[2]


def test_an_earlier_run_is_replaced_only_when_asked(model_folder, data_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert train(model_folder, data_file, out) == 0
    (out / "notes.txt").write_text("mine")
    first = (out / "adapter_model.safetensors").read_bytes()
    assert train(model_folder, data_file, out, "--seed", "1") == 2
    assert "--overwrite-output-dir" in capsys.readouterr().err
    assert (out / "adapter_model.safetensors").read_bytes() == first
    assert train(model_folder, data_file, out, "--seed", "1", "--overwrite-output-dir") == 0
    assert (out / "adapter_model.safetensors").read_bytes() != first
    assert (out / "notes.txt").read_text() == "mine"


def test_problems_in_both_files_are_reported(model_folder, data_file, tmp_path, capsys):
    assert train(model_folder, data_file, tmp_path / "out", "--eval-data", str(data_file)) == 0
    assert "warning: 30 held-out prompts are also trained on" in capsys.readouterr().out


def test_the_embedded_problems_are_disjoint():
    train_problems, held_out = load_problems(TrainConfig())
    assert len(held_out) >= 500
    assert not {p.prompt for p in train_problems} & {p.prompt for p in held_out}


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("grpo.output._write_jsonl", fail)
    with pytest.raises(OSError, match="disk full"):
        write_run(tmp_path / "out", tiny_policy(), TrainConfig(), [], [])
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_a_good_output_folder(tmp_path):
    check_output_dir(tmp_path, overwrite=False)
    (tmp_path / "file").write_text("")
    check_output_dir(tmp_path, overwrite=True)
    with pytest.raises(InputError, match="not empty"):
        check_output_dir(tmp_path, overwrite=False)


def test_the_sample_is_one_that_training_put_right_and_cannot_steer_the_terminal():
    from grpo.groups import Completion

    def evaluation(*texts: str, right: tuple[bool, ...]) -> Evaluation:
        made = [Completion(task(prompt=f"{n}+1="), (5,), text, False) for n, text in enumerate(texts)]
        return Evaluation(tuple(made), tuple((float(r),) for r in right))

    shown, stream = display(terminal=False)
    before = evaluation("1", "\x1b[2J[red]", right=(True, False))
    show_sample(before, evaluation("1", "2", right=(True, True)), shown)
    assert stream.getvalue().splitlines() == [
        "sample: 1+1=",
        "  before:  \\x1b[2J[red]  (wrong)",
        "  after:   2  (right)",
    ]
