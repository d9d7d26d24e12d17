"""The benchmark of the rewards has other numbers in every round, and lists where ours and math-verify differ."""

import json

import pytest

from benchmarks import rewards

FIGURES = {"median", "least", "most"}


def test_every_seed_has_other_questions_and_the_same_seed_the_same():
    assert rewards.math_rows(3, seed=1) == rewards.math_rows(3, seed=1)
    assert not set(rewards.math_rows(3, seed=1)) & set(rewards.math_rows(3, seed=2))


@pytest.mark.parametrize("kind", dict.fromkeys(rewards.KINDS), ids=lambda kind: kind.__name__)
def test_right_forms_are_right(kind):
    questions = [kind(rewards.random.Random(seed)) for seed in range(5)]
    rows = [(f"\\boxed{{{form}}}", answer) for answer, right, _ in questions for form in right]
    assert rewards.ours(rows, workers=2) == [1.0] * len(rows)


def test_the_first_batch_warms_up_and_does_not_count():
    seen = []
    figures, verdicts = rewards.measured(lambda batch: seen.append(batch) or [float(batch)], [1, 2, 3])
    assert seen == [1, 2, 3] and verdicts == [2.0, 3.0]
    assert set(figures) == FIGURES and figures["least"] <= figures["median"] <= figures["most"]


def test_an_answer_on_which_the_two_differ_is_listed_once():
    rows = [("\\boxed{5 m}", "5 cm")] * 2 + [("\\boxed{5}", "5")]
    (found,) = rewards.disagreements(rows, [0.0, 0.0, 1.0], [1.0, 1.0, 1.0])
    assert found == {"given": "5 m", "answer": "5 cm", "ours": 0.0, "math_verify": 1.0}


@pytest.mark.slow
def test_all_rewards_are_measured(tmp_path, capsys):
    assert rewards.run_rewards(tmp_path, questions=2, completions=2, rounds=1) == 0
    found = json.loads((tmp_path / "rewards.json").read_text())
    assert all(set(figures) == FIGURES for figures in found["rewards"].values())
    assert {name.split(",")[0] for name in found["rewards"]} >= {"math", "code", "sql"}
    assert found["math_verdicts"] == 2 * rewards.GROUP
    assert "completions judged a second" in capsys.readouterr().out
