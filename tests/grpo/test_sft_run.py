"""A warm start through the command line, and what GRPO makes of it."""

import json
import signal

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from grpo.cli import main
from grpo.console import Display
from grpo.data.loaders import problems_from_rows
from grpo.sft_run import examples
from tests.grpo.conftest import EOS, TEMPLATE, character_tokenizer

ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1), "answer": n + 1} for n in range(20)]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def sft(model_folder, data, out, *options: str) -> int:
    words = ["sft", "--model", str(model_folder), "--data", str(data), "--output-dir", str(out), "--max-steps", "6"]
    return main([*words, "--learning-rate", "1e-2", "--per-device-train-batch-size", "4", *options])


def test_an_adapter_that_peft_loads_and_grpo_goes_on_from(model_folder, data, tmp_path, capsys):
    out, run = tmp_path / "sft", tmp_path / "run"
    assert sft(model_folder, data, out, "--eval-steps", "3") == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_loss" in row] == [0, 3, 6]
    assert rows[-1]["eval_loss"] < rows[0]["eval_loss"]
    assert "held-out loss" in capsys.readouterr().out
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    ids = torch.tensor([[5, 6, 7]])
    plain = base(input_ids=ids).logits.detach()
    assert (PeftModel.from_pretrained(base, str(out))(input_ids=ids).logits - plain).abs().max() > 1e-3
    words = ["--model", str(model_folder), "--data", str(data), "--adapter", str(out), "--output-dir", str(run)]
    sizes = ["--max-steps", "1", "--max-completion-length", "3", "--num-generations", "4", "--report-to", "none"]
    assert main(["train", *words, *sizes, "--per-device-train-batch-size", "4"]) == 0
    first = json.loads((run / "metrics.jsonl").read_text().splitlines()[1])
    assert first["kl"] < 1e-6


def test_every_parameter_can_be_trained(model_folder, data, tmp_path):
    out = tmp_path / "full"
    assert sft(model_folder, data, out, "--full", "--learning-rate", "1e-3") == 0
    base, trained = (AutoModelForCausalLM.from_pretrained(path) for path in (model_folder, out))
    moved = [not torch.equal(a, b) for a, b in zip(base.parameters(), trained.parameters(), strict=True)]
    assert all(moved)


def test_long_examples_are_dropped_and_counted(model_folder, data, tmp_path, capsys):
    with open(data, "a") as file:
        file.write(json.dumps({"prompt": "1" * 80, "completion": "1"}) + "\n")
    assert sft(model_folder, data, tmp_path / "out", "--eval-size", "4") == 0
    assert "1 examples dropped as longer than 64 tokens" in capsys.readouterr().out


def test_completions_end_with_one_end_of_sequence_token_whether_text_or_a_chat_message():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    asked = [{"role": "user", "content": "1+2="}]
    rows = [
        {"prompt": asked, "completion": "3"},
        {"prompt": asked, "completion": "3<eos>"},
        {"prompt": asked, "completion": [{"role": "assistant", "content": "3"}]},
    ]
    made, dropped = examples(problems_from_rows(rows, "rows"), tokenizer, "completion", limit=64)
    assert dropped == 0
    assert {(tuple(e.prompt_ids), tuple(e.completion_ids)) for e in made} == {
        (tuple(tokenizer("<bos>u1+2=\na")["input_ids"]), (tokenizer("3")["input_ids"][0], EOS))
    }


def test_a_signal_saves_what_was_learnt(model_folder, data, tmp_path, monkeypatch, capsys):
    def step(self, number, row):
        if number == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Display, "step", step)
    assert sft(model_folder, data, tmp_path / "out") == 128 + signal.SIGTERM
    assert "grpo sft: interrupted after step 3 of 6" in capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3] and "eval_loss" in rows[-1]
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


def test_an_earlier_run_is_replaced_and_other_files_stay(model_folder, data, tmp_path):
    out = tmp_path / "out"
    assert sft(model_folder, data, out, "--full") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"examples.jsonl", "out"}
    (out / "notes.txt").write_text("mine")
    assert sft(model_folder, data, out) == 2
    assert (out / "model.safetensors").is_file()
    assert sft(model_folder, data, out, "--overwrite-output-dir") == 0
    assert {path.name for path in out.iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "environment.json", "metrics.jsonl", "notes.txt",
        "sft_config.json",
    }  # fmt: skip


def test_what_a_user_can_put_right_is_one_line(model_folder, data, tmp_path, capsys):
    out = tmp_path / "out"
    for words, message in (
        (["--completion-column", "nothing"], "has no column 'nothing'"),
        (["--completion-column", "answer"], "it must be a text that is not empty"),
        (["--full", "--load-in-4bit"], "--full trains every parameter"),
        (["--max-length", "1"], "no example has at most 1 tokens"),
        (["--min-lr-rate", "2"], "--min-lr-rate 2.0: must be in [0, 1]"),
        (["--learning-rate", "0"], "--learning-rate 0.0: must be a positive number"),
    ):
        assert sft(model_folder, data, out, *words) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
    assert not out.exists()
