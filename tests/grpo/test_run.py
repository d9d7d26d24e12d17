"""Whole runs through the command line, and what they leave behind."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from grpo.checkpoint import checkpoints
from grpo.cli import main
from grpo.config import TrainConfig
from grpo.errors import InputError
from grpo.evaluate import Evaluation
from grpo.output import check_output_dir
from grpo.run import load_problems, say_plan, show_sample
from tests.grpo.conftest import task
from tests.grpo.test_console import display
from tests.grpo.test_trainer import measured

FILES = [
    "adapter_config.json", "adapter_model.safetensors", "environment.json", "grpo", "metrics.jsonl", "samples.jsonl",
    "train_config.json",
]  # fmt: skip


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
    assert [row["step"] for row in read_jsonl(out / "metrics.jsonl")] == [0, 1, 2]


def test_problems_in_both_files_are_reported(model_folder, data_file, tmp_path, capsys):
    assert train(model_folder, data_file, tmp_path / "out", "--eval-data", str(data_file)) == 0
    assert "30 held-out prompts are also trained on" in capsys.readouterr().out


def test_the_embedded_problems_are_disjoint():
    data = load_problems(TrainConfig())
    train_problems, held_out = data.train, data.held_out
    assert len(held_out) >= 500
    assert not {p.prompt for p in train_problems} & {p.prompt for p in held_out}


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


def command(model_folder, data_file, out, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "grpo", "train", "--model", str(model_folder), "--data", str(data_file),
        "--output-dir", str(out), "--max-completion-length", "3", "--num-generations", "4", "--report-to", "none",
        "--per-device-train-batch-size", "8", "--gradient-accumulation-steps", "1", "--save-steps", "1", *options,
    ]  # fmt: skip


def start(words: list[str], **options) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def wait_for(path, process, seconds=60.0):
    until = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until, process.communicate()[1]
        time.sleep(0.01)


@pytest.mark.parametrize("options", [("--steps-per-generation", "2"), ("--num-iterations", "2")])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(options, model_folder, data_file, tmp_path):
    """6 steps against 3, a kill -9 inside a window of two, and the rest: the same parameters, completions, metrics."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [*options, "--max-steps", "6"]
    steady = start(command(model_folder, data_file, whole, *words))
    killed = start(command(model_folder, data_file, cut, *words))
    wait_for(cut / "checkpoint-3", killed)
    killed.kill()
    killed.wait()
    for later in checkpoints(cut):
        if int(later.name.rpartition("-")[2]) > 3:
            shutil.rmtree(later)
    assert steady.wait(120) == 0, steady.communicate()[1]
    assert start([sys.executable, "-m", "grpo", "train", "--resume", str(cut)]).wait(120) == 0
    assert (cut / "adapter_model.safetensors").read_bytes() == (whole / "adapter_model.safetensors").read_bytes()
    assert (cut / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()
    rows = [read_jsonl(out / "metrics.jsonl") for out in (cut, whole)]
    assert [measured(row) for row in rows[0]] == [measured(row) for row in rows[1]]


def test_a_run_killed_at_any_moment_can_be_read_and_goes_on(model_folder, data_file, tmp_path):
    """Twenty kills at random moments, each of a process that goes on where the last one ended."""
    out, moments = tmp_path / "out", random.Random(0)
    # Forked off a server that has imported everything, a process need not start an interpreter.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["grpo.trainer", __name__])
    words = command(model_folder, data_file, out, "--max-steps", "100000", "--save-total-limit", "1")[3:]
    for kill in range(20):
        process = context.Process(target=run_command, args=(words if kill == 0 else ["train", "--resume", str(out)],))
        process.start()
        newest = last_step(out)
        until = time.monotonic() + 60
        while last_step(out) == newest:
            assert process.is_alive() and time.monotonic() < until
            time.sleep(0.01)
        time.sleep(moments.random() * 0.2)
        process.kill()
        process.join()
        assert_readable(out)


def run_command(words) -> None:
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main(words)


def last_step(out) -> int:
    found = checkpoints(out) if out.exists() else []
    return int(found[-1].name.rpartition("-")[2]) if found else 0


def assert_readable(out) -> None:
    from grpo.checkpoint import read_state
    from grpo.journal import read_jsonl as read_whole_lines

    (newest, *_) = checkpoints(out)[::-1]
    assert read_state(newest)["steps_done"] == int(newest.name.rpartition("-")[2])
    for file in ("training.pt", "process-0.pt"):
        torch.load(newest / file, weights_only=True)
    json.loads((out / "train_config.json").read_text())
    steps = [row["step"] for row in read_whole_lines(out / "metrics.jsonl")]
    assert steps == list(range(len(steps)))
    read_whole_lines(out / "samples.jsonl")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_checkpoint(number, model_folder, data_file, tmp_path):
    out = tmp_path / "out"
    words = command(model_folder, data_file, out, "--max-steps", "100000", "--save-steps", "100000")
    process = start(words)
    wait_for(out / "samples.jsonl", process)
    time.sleep(0.3)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"go on with: grpo train --resume {out}" in error and len(error.splitlines()) == 1
    assert len(checkpoints(out)) == 1


def test_a_resumed_command_refuses_other_options(model_folder, data_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert train(model_folder, data_file, out, "--save-steps", "1") == 0
    assert main(["train", "--resume", str(out), "--learning-rate", "0.5"]) == 2
    assert "this would be another run: learning_rate was 0.01 and is 0.5" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert main(["train", "--resume", str(out / "checkpoint-1")]) == 0


def test_options_come_from_a_file_and_flags_override_them(model_folder, data_file, tmp_path, capsys):
    config, out = tmp_path / "train.yaml", tmp_path / "out"
    config.write_text(
        f"model: {model_folder}\ndata: {data_file}\noutput-dir: {out}\nmax_steps: 3\nlearning_rate: 1e-3\n"
        "max_completion_length: 2\nnum_generations: 4\nreward: [numeric, format]\nper_device_train_batch_size: 8\n"
        "gradient_accumulation_steps: 1\n"
    )
    assert main(["train", "--config", str(config), "--max-steps", "1"]) == 0
    saved = json.loads((out / "train_config.json").read_text())
    assert (saved["max_steps"], saved["learning_rate"], saved["reward"]) == (1, 1e-3, ["numeric", "format"])
    config.write_text("learning_rat: 1\n")
    assert main(["train", "--config", str(config)]) == 2
    assert "there is no option 'learning_rat': did you mean learning_rate?" in capsys.readouterr().err
    config.write_text("max_steps: many\n")
    assert main(["train", "--config", str(config)]) == 2
    assert "max_steps is 'many'; it must be a whole number" in capsys.readouterr().err


def test_the_library_in_ten_lines(model_folder, tmp_path):
    from grpo import Callback, TrainConfig, build

    def short(completions, **_):
        return [-float(len(text)) for text in completions]

    rows = [{"prompt": f"{n}+1="} for n in range(8)]
    config = TrainConfig(
        model=str(model_folder), max_steps=2, max_completion_length=3, num_generations=4, report_to=("none",),
        per_device_train_batch_size=8, gradient_accumulation_steps=1, output_dir=str(tmp_path / "out"),
    )  # fmt: skip
    trainer = build(config, rewards=[short], train_data=rows, eval_data=rows[:2], callbacks=[Callback()])
    result = trainer.train()
    assert len(result.metrics) == 3 and result.metrics[1]["rewards/short/mean"] < 0


def test_a_run_on_a_gpu_is_planned_before_it_starts(model_folder, data_file):
    shown, stream = display(terminal=False)
    config = TrainConfig(model=str(model_folder), data=str(data_file), max_completion_length=3)
    say_plan(config, [task()], shown)
    assert stream.getvalue().startswith("memory (simulated): rollout ")
