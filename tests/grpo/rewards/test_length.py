"""A budget of tokens, and DAPO's ramp beyond it."""

import pytest

from grpo.errors import InputError
from grpo.rewards import find_rewards
from grpo.rewards.length import length_reward


def judge(length: int, **options) -> float | None:
    return length_reward(completion_ids=[[5] * length], **options)[0]


@pytest.mark.parametrize(
    ("length", "expected"), [(0, 0.0), (1, 0.0), (100, 0.0), (101, -0.025), (110, -0.25), (140, -1.0), (10_000, -1.0)]
)
def test_zero_within_the_budget_then_a_line_to_minus_one(length, expected):
    assert judge(length, budget=100, ramp=40) == pytest.approx(expected)


def test_a_budget_of_zero_and_a_ramp_of_one_count_every_token():
    assert [judge(n, budget=0, ramp=1) for n in (0, 1, 2)] == [0.0, -1.0, -1.0]


def test_types_of_tasks_have_their_own_budgets():
    found = length_reward(
        completion_ids=[[5] * 20] * 4,
        task_type=["easy", "hard", None, "other"],
        budget=15,
        ramp=10,
        budgets="easy:10;hard:20",
    )
    assert found == [-1.0, 0.0, -0.5, -0.5]


def test_budgets_are_given_in_a_specification():
    (reward,) = find_rewards(["length:budget=15,ramp=10,budgets=easy:10;hard:20"])
    assert reward.columns == []
    assert reward.function(completion_ids=[[5] * 20], task_type=["easy"], completions=["x"]) == [-1.0]
    assert reward.rule != find_rewards(["length"])[0].rule


@pytest.mark.parametrize("budgets", ["easy", "easy:", ":5", "easy:-1", "easy:1.5", "easy:1,hard:2", "easy:\u0663"])
def test_budgets_of_another_form_are_refused(budgets):
    with pytest.raises(InputError, match="budgets is .*; it must be TYPE:TOKENS;TYPE:TOKENS"):
        judge(1, budgets=budgets)


@pytest.mark.parametrize("options", [{"budget": -1}, {"ramp": 0}])
def test_budgets_and_ramps_have_least_values(options):
    with pytest.raises(InputError, match="they must be at least 0 and 1"):
        judge(1, **options)
