"""All trainers of the comparison do the same work, and each phase is timed."""

import json

import pytest

from benchmarks import trainer
from benchmarks.trainer_steps import TRAINERS, Work, model_folder, our_steps, trl_steps

WORK = Work("tiny", 300, 2, num_generations=2, max_completion_length=3, micro_batch=2, steps=2, width=16, layers=1)


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_samples_and_trains_in_every_step(name, tmp_path):
    model = model_folder(WORK, tmp_path / "model")
    if name == "ours":
        built, *steps = our_steps(WORK, model)
    else:
        pytest.importorskip("trl")
        built, *steps = trl_steps(WORK, model, tmp_path, fused=name != "TRL")
    assert built == {}
    assert len(steps) == WORK.steps
    for step in steps:
        assert step["tokens"] == WORK.questions * WORK.num_generations * WORK.max_completion_length
        assert step["rollout"] > 0 and step["train"] > 0 and step["rest"] > 0


def test_runs_are_interleaved_and_summed_up(tmp_path, monkeypatch, capsys):
    order = []

    def run_once(name, work):
        order.append(name)
        return {"rollout": len(order), "train": 2 * len(order), "whole step": len(order) / 2, "peak_bytes": 2**20}

    monkeypatch.setattr(trainer, "TRAINERS", ("ours",))
    monkeypatch.setattr(trainer, "run_once", run_once)
    trainer.run_trainer(tmp_path, [WORK], rounds=3)
    (found,) = json.loads((tmp_path / "trainer.json").read_text())["works"]
    assert found["trainers"]["ours"]["train"] == {"median": 4, "least": 2, "most": 6}
    assert "4 (2 to 6)" in capsys.readouterr().out
