"""A reward made of parts: weights, gates, and what each sample keeps of it."""

import json

import pytest

from grpo.cli import main
from grpo.errors import InputError
from grpo.groups import Completion
from grpo.rewards import RewardRunner, find_rewards
from grpo.rewards.composite import is_answered
from tests.grpo.conftest import task

GATED = """
correctness: {reward: numeric, weight: 1}
format: {reward: format, weight: 0.2, if: answered}
bonus: {reward: "format:sections=answer", weight: 0.5, if: correctness}
"""


@pytest.fixture
def write(tmp_path):
    def written(text: str) -> str:
        path = tmp_path / "reward.yaml"
        path.write_text(text)
        return f"composite:{path}"

    return written


def score(spec: str, *texts: str):
    return RewardRunner(find_rewards([spec])).score([Completion(task(), (5,), text, False) for text in texts])


def test_the_total_is_the_weighted_sum_of_the_parts_and_each_is_kept(write):
    scores = score(write(GATED), "<answer>3</answer>", "3", "<answer>4</answer>", "<answer></answer>")
    assert [row[0] for row in scores.rows] == pytest.approx([1.7, 1.0, 0.2, 0.0])
    assert scores.parts[0] == {"composite/correctness": 1.0, "composite/format": 1.0, "composite/bonus": 1.0}
    assert scores.parts[2] == {"composite/correctness": 0.0, "composite/format": 1.0, "composite/bonus": 0.0}


def test_no_points_for_the_form_of_an_empty_answer(write):
    scores = score(
        write(
            "correctness: {reward: numeric, weight: 1}\nform: {reward: M, weight: 1, if: answered}".replace(
                "M", "tests.grpo.rewards.test_composite:always"
            )
        ),
        "<answer> </answer>",
        "x",
    )
    assert [row[0] for row in scores.rows] == [0.0, 1.0]


def always(completions, **_):
    return [1.0] * len(completions)


def unsure(completions, **_):
    return [None if text == "?" else 1.0 for text in completions]


def test_without_a_verdict_on_correctness_there_is_none(write):
    text = f"correctness: {{reward: '{__name__}:unsure', weight: 1}}\nform: {{reward: format, weight: 1}}"
    assert score(write(text), "?", "x").rows == [(None,), (1.0,)]


def test_another_part_without_a_verdict_adds_nothing(write):
    text = f"correctness: {{reward: numeric, weight: 1}}\nother: {{reward: '{__name__}:unsure', weight: 1}}"
    scores = score(write(text), "?", "3")
    assert scores.rows == [(0.0,), (2.0,)]
    assert scores.parts[0]["composite/other"] is None


def test_a_part_behind_a_closed_gate_opens_none(write):
    text = """
correctness: {reward: numeric, weight: 1}
last: {reward: 'tests.grpo.rewards.test_composite:always', weight: 0.1, if: form}
form: {reward: format, weight: 0.5, if: correctness}
"""
    scores = score(write(text), "<answer>3</answer>", "<answer>4</answer>", "3")
    assert [row[0] for row in scores.rows] == pytest.approx([1.6, 0.0, 1.0])
    assert list(scores.parts[1].values()) == [0.0, 0.0, 0.0]


def test_a_composite_may_be_a_part_but_not_of_itself(tmp_path, write):
    (tmp_path / "inner.yaml").write_text("right: {reward: numeric, weight: 2}")
    outer = write(f"inner: {{reward: 'composite:{tmp_path}/inner.yaml', weight: 1}}")
    assert score(outer, "3").rows == [(2.0,)]
    (tmp_path / "inner.yaml").write_text(f"right: {{reward: '{outer}', weight: 2}}")
    with pytest.raises(InputError, match="the file is a part of itself"):
        find_rewards([outer])


def test_the_rule_changes_with_the_parts_their_weights_and_their_gates(write):
    rules = {find_rewards([write(text)])[0].rule for text in (
        GATED, GATED.replace("0.2", "0.3"), GATED.replace("if: answered", "if: correctness"),
        GATED.replace("reward: numeric", "reward: math"), GATED.replace("sections=answer", "sections=think"),
    )}  # fmt: skip
    assert len(rules) == 5
    assert find_rewards([write(GATED)])[0].rule in rules


def test_it_needs_the_columns_of_its_parts_and_may_run_beside_the_sampler_if_all_of_them_may(write):
    (built_in,) = find_rewards([write("a: {reward: code, weight: 1}\nb: {reward: sql, weight: 1}")])
    assert built_in.columns == ["tests", "answer", "database"] and built_in.beside_sampling
    (own,) = find_rewards([write("a: {reward: 'tests.grpo.rewards.test_composite:always', weight: 1}")])
    assert not own.beside_sampling


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it must hold parts"),
        ("- a", "it must hold parts"),
        ("a: [", "it is no YAML"),
        ("a: {reward: numeric}", "the weight of a is None; it must be a finite number"),
        ("a: {reward: numeric, weight: .inf}", "the weight of a is inf"),
        ("a: {reward: numeric, weight: true}", "the weight of a is True"),
        ("a: {weight: 1}", "a is .*; it must have a `reward`"),
        ("a: {reward: numeric, weight: 1, gate: x}", "it must have a `reward`"),
        ("a: {reward: numerics, weight: 1}", "a: --reward numerics: there is no such reward"),
        ("a: {reward: numeric, weight: 1, if: b}", "a has the gate 'b'; it must be answered"),
        ("a: {reward: numeric, weight: 1, if: a}", "a has the gate 'a'"),
        ("a: {reward: numeric, weight: 1, if: b}\nb: {reward: format, weight: 1}", "a comes first and is correctness"),
        (
            "a: {reward: numeric, weight: 1}\nb: {reward: format, weight: 1, if: c}\n"
            "c: {reward: format, weight: 1, if: b}",
            "its gates go in a circle: b, c, b|its gates go in a circle: c, b, c",
        ),
        ("answered: {reward: numeric, weight: 1}", "a part cannot be called 'answered'"),
        ("total: {reward: numeric, weight: 1}", "a part cannot be called 'total'"),
        ("a/b: {reward: numeric, weight: 1}", "a part cannot be called 'a/b'"),
    ],
)
def test_what_a_file_says_wrongly_is_one_sentence(write, text, message):
    with pytest.raises(InputError, match=message) as caught:
        find_rewards([write(text)])
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(InputError, match="composite:nowhere.yaml: the file cannot be read"):
        find_rewards(["composite:nowhere.yaml"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", False),
        ("  \n", False),
        ("x", True),
        ("<think>long</think>", False),
        ("<think>long</think> 5", True),
        ("<think>x</think><answer></answer>", False),
        ("<answer>5", True),
        ("<answer>4</answer><answer> </answer>", False),
    ],
)
def test_an_answer_is_what_stands_in_its_place(text, expected):
    assert is_answered(text) is expected


def test_parts_reach_metrics_samples_and_accuracy(write, model_folder, data_file, tmp_path):
    out = tmp_path / "run"
    assert main([
        "train", "--model", str(model_folder), "--data", str(data_file), "--reward", write(GATED),
        "--output-dir", str(out),
        "--num-generations", "4", "--per-device-train-batch-size", "8", "--gradient-accumulation-steps", "1",
        "--max-completion-length", "3", "--max-steps", "2", "--report-to", "none", "--eval-size", "2",
    ]) == 0  # fmt: skip
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    names = [f"rewards/composite/{part}/mean" for part in ("correctness", "format", "bonus")]
    assert all(name in rows[1] for name in names)
    assert rows[1]["accuracy"] == rows[1][names[0]]
    samples = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert {sample["split"] for sample in samples} == {"train", "held_out", "probe"}
    for sample in samples:
        assert list(sample["parts"]) == ["composite/correctness", "composite/format", "composite/bonus"]
