"""The last number of a completion, compared exactly."""

import time

import pytest

from grpo.errors import InputError
from grpo.rewards.numeric import numeric_reward


def judge(completion: str, answer) -> float | None:
    return numeric_reward(completions=[completion], answer=[answer])[0]


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("46", "46"),
        (" 46.", 46),
        ("12+34=46", "46"),
        ("The answer is 46.", "46"),
        ("$1,234.50", "1234.5"),
        ("46.0", "46"),
        ("+46", 46),
        ("-7", -7),
        ("\N{MINUS SIGN}7", -7),
        ("3-10=-7", "-7"),
        (".5", "0.5"),
        ("1/2", 0.5),
        ("1.5e3", "1500"),
        ("0.1", 0.1),
        ("<answer>46</answer> in 3 steps", "46"),
        ("1, 2, 3", "3"),
    ],
)
def test_right_answers(completion, answer):
    assert judge(completion, answer) == 1.0


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("", "0"),
        ("no number", "0"),
        ("45", "46"),
        ("46 or 47", "46"),
        ("460", "46"),
        ("-46", "46"),
        ("7-46", "-46"),
        ("1,2", "12"),
        ("0.30000000000000004", 0.3),
        ("1/0", "0"),
        ("<answer>45</answer> 46", "46"),
        ("\N{ARABIC-INDIC DIGIT FOUR}", "4"),
    ],
)
def test_wrong_answers(completion, answer):
    assert judge(completion, answer) == 0.0


@pytest.mark.parametrize("hostile", ["9" * 100_000, "1e999999999", "1," * 50_000, "-" * 100_000, "1/" * 50_000])
def test_hostile_completions_are_wrong_and_cheap(hostile):
    started = time.perf_counter()
    assert judge(hostile, "46") == 0.0
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("answer", ["four", "", None, True, [4], float("nan"), float("inf")])
def test_an_answer_that_is_not_a_number_is_refused_by_sample(answer):
    with pytest.raises(InputError, match="answer of sample 1 is"):
        numeric_reward(completions=["4", "4"], answer=[4, answer])
