"""Advantages: exact values, and exactly zero where completions cannot be told apart."""

import math

import pytest
import torch

from grpo.advantages import group_advantages


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_of_equal_rewards_has_exactly_zero_advantage(scale):
    equal = torch.full((16,), 1.2, dtype=torch.float32).tolist()
    assert group_advantages([equal, [1.0, 0.0]], scale)[0] == [0.0] * 16


def test_rewards_that_differ_by_rounding_are_equal():
    assert group_advantages([[0.1 + 0.2, 0.3]]) == [[0.0, 0.0]]
    assert group_advantages([[float(torch.tensor(1.2)), 1.2]]) == [[0.0, 0.0]]


def test_a_group_of_one_has_zero_advantage():
    assert group_advantages([[0.7]]) == [[0.0]]


def test_group_scaling_uses_the_sample_standard_deviation():
    half = math.sqrt(0.5)
    assert group_advantages([[1.0, 0.0]])[0] == pytest.approx([half, -half])


def test_without_scaling_advantages_are_differences_from_the_mean():
    assert group_advantages([[1.0, 0.0], [1.0, 1.0]], "none") == [[0.5, -0.5], [0.0, 0.0]]


def test_batch_scaling_divides_by_the_deviation_of_all_rewards():
    deviation = math.sqrt((9 + 1 + 1 + 9) / 3)  # of 0, 2, 4, 6 around 3
    first, second = group_advantages([[0.0, 2.0], [4.0, 6.0]], "batch")
    assert first == pytest.approx([-1 / deviation, 1 / deviation])
    assert second == first


def test_none_is_left_out_of_the_mean_and_of_the_deviation():
    assert group_advantages([[1.0, None, 0.0, None]], "none") == [[0.5, None, -0.5, None]]
    scaled = group_advantages([[1.0, None, 0.0, None]])[0]
    assert [scaled[0], scaled[2]] == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])
    assert group_advantages([[None, None]]) == [[None, None]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="finite"):
        group_advantages([[1.0, bad]])


def test_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="'group', 'batch' or 'none'"):
        group_advantages([[1.0, 0.0]], "std")
