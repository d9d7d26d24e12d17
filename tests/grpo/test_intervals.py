"""Intervals, pass@k, maj@k and McNemar's p against values worked out by hand or by other implementations."""

import itertools
import math
import random

import pytest

from grpo.intervals import difference, maj_at_k, mcnemar, mean, pass_at_k, proportion


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilsons_interval(successes, trials, low, high):
    estimate = proportion(successes, trials)
    assert estimate.value == successes / trials
    assert (estimate.low, estimate.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_the_interval_of_a_mean():
    # With two 0 and two 1 added: 8 values, mean 1/2, variance 1/4.
    half = 1.959964 * math.sqrt((1 / 4) / 8)
    assert mean([0.0, 1.0, 1.0, 0.0]) == pytest.approx((0.5, 0.5 - half, 0.5 + half), abs=1e-6)
    # 20 values, 18 of them 1.
    half = 1.959964 * math.sqrt(0.9 * 0.1 / 20)
    assert mean([1.0] * 16) == pytest.approx((1.0, 0.9 - half, 1.0), abs=1e-6)


def test_the_interval_of_a_difference_on_the_same_questions():
    before, after = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    # Of 8 questions 3.5 are won and 1.5 lost: mean 2/8, mean square 5/8.
    half = 1.959964 * math.sqrt((5 / 8 - 1 / 16) / 8)
    assert difference(before, after) == pytest.approx((1 / 3, 0.25 - half, 0.25 + half), abs=1e-6)
    # Two models that agree on ten questions may still differ.
    half = 1.959964 * math.sqrt((1 / 12) / 12)
    assert difference([1.0] * 10, [1.0] * 10) == pytest.approx((0.0, -half, half), abs=1e-6)


@pytest.mark.parametrize("questions", [10, 40])
@pytest.mark.parametrize("chance", [0.02, 0.3, 0.9])
def test_intervals_hold_as_often_as_they_say(questions, chance):
    draw = random.Random(0)
    means = differences = 0
    for _ in range(600):
        first, second = ([float(draw.random() < chance) for _ in range(questions)] for _ in range(2))
        low, high = mean(first)[1:]
        means += low <= chance <= high
        low, high = difference(first, second)[1:]
        differences += low <= 0.0 <= high
    # 95% of 600 is 570, with a standard deviation of 5.3.
    assert means >= 556 and differences >= 556


@pytest.mark.parametrize("n", [1, 4, 6])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n):
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        flags = [True] * correct + [False] * (n - correct)
        subsets = list(itertools.combinations(flags, k))
        assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_maj_at_k():
    answers, right = ["a", "a", "b", "c"], [True, True, False, False]
    assert maj_at_k(answers, right, 1) == 0.5
    # Of the pairs: aa right; ab, ac four times half; bc wrong.
    assert maj_at_k(answers, right, 2) == pytest.approx((1 + 4 * 0.5 + 0) / 6)
    assert maj_at_k(answers, right, 4) == 1.0
    assert maj_at_k(["b", "b", "a"], [False, False, True], 3) == 0.0
    # The same answer can be right once and wrong once, where the verdict is on more than the answer.
    assert (
        maj_at_k(["a", "a", "b"], [True, False, False], 3) == maj_at_k(["a", "a", "b"], [False, True, False], 3) == 0.5
    )


def test_maj_at_k_of_many_samples_is_drawn_and_the_seed_decides():
    answers, right = [str(n % 3) for n in range(40)], [n % 3 == 0 for n in range(40)]
    assert maj_at_k(answers, right, 20) == maj_at_k(answers, right, 20) != maj_at_k(answers, right, 20, seed=1)
    assert 0.3 < maj_at_k(answers, right, 20) < 0.6


@pytest.mark.parametrize(
    ("first", "second", "p"), [(0, 0, 1.0), (0, 5, 0.0625), (5, 0, 0.0625), (3, 3, 1.0), (1, 9, 0.021484)]
)
def test_mcnemars_exact_p(first, second, p):
    assert mcnemar(first, second) == pytest.approx(p, abs=1e-6)


def test_impossible_numbers_are_refused():
    with pytest.raises(ValueError, match="k is 5; it must be from 1 to the number of samples \\(4\\)"):
        pass_at_k(4, 1, 5)
    with pytest.raises(ValueError, match="k is 0"):
        maj_at_k(["a"], [True], 0)
    with pytest.raises(ValueError, match="trials is 0"):
        proportion(0, 0)
    with pytest.raises(ValueError, match="values is empty"):
        mean([])
    with pytest.raises(ValueError, match="is_right has 1 verdicts; it must have one for each of 2 answers"):
        maj_at_k(["a", "b"], [True], 1)
