"""Accuracy is the share of tasks that the first reward calls right."""

import json

import torch

from grpo.cli import main
from grpo.evaluate import Evaluation, answer_of, compare_greedy, evaluate, evaluate_model, evaluate_samples
from grpo.rewards import Reward, RewardRunner
from tests.grpo.conftest import task, tiny_policy


def test_accuracy_counts_full_marks_of_the_first_reward():
    rewards = ((1.0, 0.0), (0.5, 1.0), (None, 1.0), (2.0, 1.0))
    assert Evaluation((), rewards).accuracy == 0.5


def test_every_task_is_answered_once_and_greedily():
    seen = []
    spy = Reward("spy", 1, lambda completions, **_: seen.extend(completions) or [1.0] * len(completions))
    tasks = [task(str(n), prompt=f"{n}+1=") for n in range(5)]
    first = evaluate(tiny_policy(), tasks, RewardRunner([spy]), 4, batch_size=2)
    second = evaluate(tiny_policy(), tasks, RewardRunner([spy]), 4, batch_size=5)
    assert [c.task.id for c in first.completions] == list("01234")
    assert first.completions == second.completions
    assert len(seen) == 10


def test_samples_are_judged_for_each_task():
    tasks = [task(str(n), prompt=f"{n}+1=", rules=("even@1",)) for n in range(3)]
    even = Reward("even", 1, lambda completion_ids, **_: [float(ids[0] % 2 == 0) for ids in completion_ids])
    torch.manual_seed(0)
    sampled = evaluate_samples(tiny_policy(), tasks, RewardRunner([even]), 3, 4, samples=4)
    assert [[c.task.id for c in row] for row in sampled.completions] == [[t.id] * 4 for t in tasks]
    assert sampled.correct == tuple(tuple(c.ids[0] % 2 == 0 for c in row) for row in sampled.completions)
    assert sampled.pass_at(1) == [sum(row) / 4 for row in sampled.correct]
    assert sampled.pass_at(4) == [float(any(row)) for row in sampled.correct]


def test_the_seed_decides_what_is_sampled():
    tasks = [task(str(n), prompt=f"{n}+1=", rules=("one@1",)) for n in range(2)]
    one = Reward("one", 1, lambda completions, **_: [1.0] * len(completions))

    def texts(seed: int) -> list[str]:
        found = evaluate_model(tiny_policy(), tasks, RewardRunner([one]), 8, 4, samples=3, seed=seed)
        assert len(found.greedy.completions) == 2
        return [completion.text for row in found.sampled.completions for completion in row]

    assert texts(0) == texts(0) != texts(1)


def test_votes_are_on_answers_not_on_texts():
    assert answer_of("so <answer>46</answer>") == answer_of("it is 46.0") == answer_of("46") == "46"
    assert answer_of("<answer> Yes </answer>") == answer_of("yes") == "yes"


def test_two_models_are_compared_on_the_same_questions():
    one, other = (Evaluation((), tuple((r,) for r in row)) for row in ((1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0)))
    compared = compare_greedy(one, other)
    assert (compared.base.value, compared.adapter.value, compared.difference.value) == (0.25, 0.75, 0.5)
    assert compared.p == 0.5
    assert compared.difference.low < 0.5 < compared.difference.high


EVAL_ROWS = [{"prompt": f"{n}+1=", "answer": n + 1} for n in range(12)]


def test_a_run_is_evaluated_beside_its_base(model_folder, tmp_path, capsys):
    data, out, figures = tmp_path / "data.jsonl", tmp_path / "out", tmp_path / "eval.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in EVAL_ROWS))
    words = ["--model", str(model_folder), "--data", str(data), "--eval-size", "5", "--max-completion-length", "3"]
    sizes = ["--per-device-train-batch-size", "8", "--gradient-accumulation-steps", "1", "--num-generations", "4"]
    train = ["train", *words, *sizes, "--max-steps", "1", "--output-dir", str(out), "--report-to", "none"]
    assert main([*train, "--save-steps", "1"]) == 0
    capsys.readouterr()
    assert main(["eval", str(out), "--samples", "4", "--k", "1", "4", "--output", str(figures)]) == 0
    printed = capsys.readouterr().out
    assert "5 questions" in printed
    for name in ("greedy accuracy", "pass@1", "pass@4", "maj@4", "base", "adapter", "difference"):
        assert name in printed
    written = json.loads(figures.read_text())
    assert written["questions"] == len(written["answers"]) == 5
    assert set(written["measures"]["pass@4"]) == {"base", "adapter", "difference"}
    assert written["reward"] == ["numeric"] and written["adapter"] == str(out)
    held_out = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert {a["question"] for a in written["answers"]} == {s["question"] for s in held_out if s["split"] == "held_out"}
    again = tmp_path / "again.json"
    assert main(["eval", str(out), "--samples", "4", "--k", "1", "4", "--output", str(again)]) == 0
    assert again.read_text() == figures.read_text()
    assert main(["eval", str(out / "checkpoint-1"), "--samples", "4", "--k", "1", "4", "--output", str(again)]) == 0
    assert json.loads(again.read_text())["measures"] == written["measures"]
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"prompt": "2+2=", "answer": 4}) + "\n")
    assert main(["eval", str(out), "--data", str(other), "--output", str(again)]) == 0
    assert [a["question"] for a in json.loads(again.read_text())["answers"]] == [f"{other} line 1"]


def test_a_base_alone_on_a_file(model_folder, tmp_path, capsys):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in EVAL_ROWS))
    words = ["eval", "--model", str(model_folder), "--data", str(data), "--max-completion-length", "3", "--limit", "7"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "7 questions" in printed and "adapter" not in printed


def test_without_a_model_the_embedded_one_is_asked_its_held_out_sums(capsys):
    assert main(["eval", "--limit", "8"]) == 0
    assert "8 questions" in capsys.readouterr().out


def test_impossible_evaluations_are_one_line(model_folder, tmp_path, capsys):
    for words, message in (
        ([str(tmp_path)], "is no folder of a run: there is no train_config.json"),
        (["--model", str(model_folder)], "give a run's folder, or --model and --data"),
        (["--k", "4"], "--k needs --samples"),
        (["--samples", "2", "--k", "4"], "--k 4: must be from 1 to --samples (2)"),
    ):
        assert main(["eval", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
