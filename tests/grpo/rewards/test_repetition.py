"""The share of n-grams of tokens that came before."""

import time

import pytest

from grpo.errors import InputError
from grpo.rewards.repetition import repetition_reward


def judge(ids, **options) -> float | None:
    return repetition_reward(completion_ids=[list(ids)], **options)[0]


@pytest.mark.parametrize(
    ("ids", "n", "expected"),
    [
        ([], 2, 0.0),
        ([1], 2, 0.0),
        ([1, 2], 2, 0.0),
        ([1, 2, 3, 4], 2, 0.0),
        ([1, 1, 1], 2, -0.5),  # (1, 1) twice
        ([1, 2, 1, 2], 2, -1 / 3),  # (1, 2), (2, 1), (1, 2)
        ([1, 2, 1, 2], 3, 0.0),
        ([1, 2, 1, 2], 1, -0.5),
        ([7] * 101, 1, -100 / 101),
        ([7] * 103, 4, -0.99),
        (list(range(50)) * 2, 4, -47 / 97),
    ],
)
def test_minus_the_share_of_ngrams_that_came_before(ids, n, expected):
    assert judge(ids, n=n) == pytest.approx(expected)


def test_the_order_of_ngrams_does_not_matter_but_that_of_their_tokens_does():
    assert judge([1, 2, 9, 1, 2], n=2) == judge([1, 2, 1, 2, 9], n=2) == -0.25
    assert judge([1, 2, 9, 2, 1], n=2) == 0.0


def test_n_is_at_least_one():
    with pytest.raises(InputError, match="n is 0; it must be at least 1"):
        judge([1], n=0)


def test_long_completions_take_linear_time():
    started = time.perf_counter()
    assert judge([7] * 10**6) == pytest.approx(-1.0, abs=1e-5)
    assert time.perf_counter() - started < 3
