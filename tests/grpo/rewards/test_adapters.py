"""Functions of other forms: one completion at a time, and verl's compute_score."""

import asyncio

import pytest

from grpo.groups import Completion
from grpo.rewards import RewardRunner, find_rewards, own_reward
from grpo.rewards.adapters import conversational
from tests.grpo.conftest import task


def score(function, *texts: str, **columns):
    tasks = [task(str(n)) for n in range(len(texts))]
    for n, one in enumerate(tasks):
        one.columns.update({name: values[n] for name, values in columns.items()})
    runner = RewardRunner([own_reward(function)])
    return runner.score([Completion(t, (5,), text, False) for t, text in zip(tasks, texts, strict=True)])


def exact(completion: str, answer: str) -> float:
    return float(completion == answer)


def test_one_completion_and_its_columns():
    assert own_reward(exact).columns == ["answer"]
    assert score(exact, "3", "4").rows == [(1.0,), (0.0,)]


def test_the_prompt_and_all_columns_are_there_where_they_are_asked_for():
    def judge(completion, prompt, **row):
        return float(f"{prompt}{row['answer']}" == "1+2=3" and completion == "x")

    assert own_reward(judge).columns == []
    assert score(judge, "x", "y").rows == [(1.0,), (0.0,)]


def test_columns_with_defaults_may_be_missing():
    def judge(completion, scale=2.0, *, answer):
        return scale

    assert own_reward(judge).columns == ["answer"]
    assert score(judge, "3").rows == [(2.0,)]
    assert score(judge, "3", scale=[5.0]).rows == [(5.0,)]


def test_async_functions_of_one_completion():
    async def judge(completion):
        await asyncio.sleep(0)
        return float(len(completion))

    assert score(judge, "a", "bb").rows == [(1.0,), (2.0,)]


def test_one_that_fails_leaves_its_siblings_alone():
    scores = score(lambda completion: 1 / len(completion), "a", "", "b")
    assert scores.rows == [(1.0,), (None,), (1.0,)]
    assert scores.failures[0].sample == 1


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    right = float(solution_str == ground_truth)
    return {"score": right - 0.5, "acc": right, "pred": solution_str} if data_source == "dict" else right


def test_verls_compute_score():
    scores = score(compute_score, "3", "4", data_source=["gsm8k"] * 2, ground_truth=["3", "3"])
    assert scores.rows == [(1.0,), (0.0,)]
    assert own_reward(compute_score).name == "compute_score"


def test_verls_own_column_holds_the_truth_too_and_a_dict_has_parts():
    scores = score(compute_score, "3", data_source=["dict"], reward_model=[{"style": "rule", "ground_truth": "3"}])
    assert scores.rows == [(0.5,)]
    assert scores.parts == [{"compute_score/acc": 1.0}]


def test_a_truth_that_is_nowhere_is_a_failure():
    assert "ground_truth" in score(compute_score, "3").failures[0].reason


@pytest.mark.parametrize("name", ["exact", "compute_score"])
def test_they_are_found_by_file_and_run_with_a_time_limit(name, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def exact(completion, answer):\n    return float(completion == answer)\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(solution_str == ground_truth)}\n"
    )
    (reward,) = find_rewards([f"{path}:{name}"])
    one = task("1")
    one.columns["ground_truth"] = "3"
    found = [Completion(one, (5,), text, False) for text in ("3", "4")]
    for timeout_s in (None, 20.0):
        assert RewardRunner([reward], timeout_s=timeout_s).score(found).rows == [(1.0,), (0.0,)]


def test_a_function_may_ask_for_messages():
    @conversational
    def judge(completions, answer, **_):
        return [float(c[0]["content"] == a) for c, a in zip(completions, answer, strict=True)]

    assert own_reward(judge).columns == ["answer"]
    assert score(judge, "3", "4").rows == [(1.0,), (0.0,)]
