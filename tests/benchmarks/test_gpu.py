"""What ``--gpu`` runs, at toy sizes on the CPU: every section gives its figures, and ours is right."""

import json
from dataclasses import replace

import pytest
import torch

from benchmarks import contenders, gpu, measure
from benchmarks.cases import Case
from benchmarks.training_step import ModelShape, build_model, largest_difference

TINY = Case(tokens=64, width=16, vocabulary=101, active=1.0)
MODEL = ModelShape(16, 24, 2, 2, 1, 101, "float32", prompt=3, completion=5, most_sequences=2)
SIZES = gpu.Sizes(
    right=(TINY,),
    logits=(replace(TINY, start="logits"),),
    linear=(TINY,),
    logps=(replace(TINY, start="logps"),),
    copied_bytes=2**20,
    product=(8, 16, 32),
    seconds=0.0,
    model=MODEL,
)


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    """torch.compile takes longer than all the rest."""
    kept = [c for c in contenders.CONTENDERS if "compile" not in c.name]
    monkeypatch.setattr(contenders, "CONTENDERS", kept)


def test_every_section_gives_its_figures(tmp_path, capsys):
    assert gpu.run_gpu("cpu", tmp_path, SIZES) == 0
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["status"] for row in content["correctness"] if row["contender"].startswith("ours")} == {"right"}
    assert content["copy_bytes_per_second"] > 0 and content["product_flops"]["float32"] > 0
    timed = [row for row in content["results"] if row["contender"].startswith("ours") and row["status"] == "right"]
    assert {row["case"]["start"] for row in timed} == {"hidden", "logits", "logps"}
    assert all(row["share"] > 0 for row in timed)
    steps = content["training_step"]["steps"]
    assert [(s["loss"], s["sequences"]) for s in steps] == [("eager", 1), ("ours", 1), ("eager", 2), ("ours", 2)]
    assert all(s["tokens_per_second"] > 0 for s in steps)
    assert "tokens/s" in capsys.readouterr().out


def test_what_there_is_no_time_for_is_named(tmp_path, capsys):
    gpu.run_gpu("cpu", tmp_path, SIZES, seconds=0.0)
    assert "left out, the time is over: a training step" in capsys.readouterr().out


def test_a_share_is_of_the_least_that_has_to_be_moved_or_computed():
    result = measure.Result(replace(TINY, start="logits"), "ours", "cpu", "right", seconds=2.0)
    assert gpu.share(result, bandwidth=64 * 101 * 4, rate=None) == 1.0  # one read and one write in two seconds
    result = replace(result, case=TINY)
    assert gpu.share(result, bandwidth=1.0, rate=2 * 64 * 101 * 16) == 1.0


def test_both_losses_of_the_training_step_have_the_same_gradient():
    torch.manual_seed(0)
    assert largest_difference(build_model(MODEL, "cpu"), MODEL, "cpu") < 1e-4


def test_a_batch_that_does_not_fit_ends_the_doubling_of_its_loss(monkeypatch):
    def too_large(model, ids, *_):
        raise torch.OutOfMemoryError

    monkeypatch.setitem(gpu.measure_steps.__globals__["LOSSES"], "eager", too_large)
    steps = gpu.measure_steps(build_model(MODEL, "cpu"), MODEL, "cpu")
    assert [(s.loss, s.sequences, s.out_of_memory) for s in steps] == [
        ("eager", 1, True),
        ("ours", 1, False),
        ("ours", 2, False),
    ]
