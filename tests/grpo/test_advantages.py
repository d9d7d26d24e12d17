"""Advantages: exact values, and exactly zero where completions cannot be told apart."""

import math

import pytest
import torch

from grpo.advantages import AdvantageConfig, completion_advantages, decoupled_advantages, group_advantages
from grpo.errors import InputError
from grpo.groups import Completion, Group
from tests.grpo.conftest import task

HALF = math.sqrt(0.5)


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
    assert group_advantages([[1.0, 0.0]])[0] == pytest.approx([HALF, -HALF])


def test_batch_scaling_divides_by_the_deviation_of_all_rewards():
    deviation = math.sqrt((9 + 1 + 1 + 9) / 3)  # of 0, 2, 4, 6 around 3
    first, second = group_advantages([[0.0, 2.0], [4.0, 6.0]], "batch")
    assert first == pytest.approx([-1 / deviation, 1 / deviation])
    assert second == first


def test_none_is_left_out_of_the_mean_and_of_the_deviation():
    rewards = [[1.0, None, 0.0, None]]
    assert group_advantages(rewards, "none") == [[0.5, None, -0.5, None]]
    assert group_advantages(rewards)[0] == [pytest.approx(HALF), None, pytest.approx(-HALF), None]
    assert group_advantages(rewards, std_estimator="population") == [[1.0, None, -1.0, None]]
    assert group_advantages([[None, None]]) == [[None, None]]


def test_none_is_left_out_of_the_leave_one_out_baseline():
    assert group_advantages([[1.0, None, 0.0]], "none", "rloo") == [[1.0, None, -1.0]]


def test_questions_with_the_same_text_are_compared_apart():
    rewards = {"q1": ((1.0,), (0.0,)), "q2": ((1.0,), (1.0,))}
    groups = [
        Group(name, task(name), (Completion(task(name), (5, 1), "3", False),) * 2, rows)
        for name, rows in rewards.items()
    ]
    assert groups[0].task.prompt == groups[1].task.prompt
    unscaled = AdvantageConfig(scale_rewards="none")
    assert completion_advantages([g.rewards for g in groups], (1.0,), unscaled) == [[0.5, -0.5], [0.0, 0.0]]


def test_leave_one_out_compares_with_the_mean_of_the_others():
    assert group_advantages([[1.0, 0.0, 0.0, 0.0]], "none", "rloo") == [[1.0, -1 / 3, -1 / 3, -1 / 3]]
    assert group_advantages([[0.7], [1.2] * 16], "none", "rloo") == [[0.0], [0.0] * 16]


def test_leave_one_out_is_scaled_like_the_mean_baseline():
    deviation = 0.5  # sample deviation of 1, 0, 0, 0
    (advantages,) = group_advantages([[1.0, 0.0, 0.0, 0.0]], "group", "rloo")
    assert advantages == pytest.approx([1 / deviation] + [-1 / 3 / deviation] * 3)


def test_what_is_left_of_parts_that_cancel_is_no_difference():
    assert group_advantages([[0.1 * 3 - 0.3, 0.0]]) == [[0.0, 0.0]]


def test_decoupled_advantages_of_one_group():
    """Rule 1 is 1, 0, 0, 0 (mean 1/4, deviation 1/2), rule 2 is 0, 0, 10, 10 (mean 5, deviation 10 / sqrt 3)."""
    rows = [(1.0, 0.0), (0.0, 0.0), (0.0, 10.0), (0.0, 10.0)]
    half_of_root_3 = math.sqrt(3) / 2
    sums = [
        1.5 - half_of_root_3 / 2,
        -0.5 - half_of_root_3 / 2,
        -0.5 + half_of_root_3 / 2,
        -0.5 + half_of_root_3 / 2,
    ]
    deviation = math.sqrt(sum(s * s for s in sums) / 3)
    assert decoupled_advantages([rows], (1.0, 0.5))[0] == pytest.approx([s / deviation for s in sums])


def test_decoupled_advantages_do_not_depend_on_the_scale_of_a_rule():
    small = [[(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, 0.0), (0.0, 0.0)]]
    large = [[(a, 1000 * b) for a, b in rows] for rows in small]
    for one, other in zip(decoupled_advantages(small, (1, 1)), decoupled_advantages(large, (1, 1)), strict=True):
        assert one == pytest.approx(other)


def test_decoupled_advantages_have_deviation_one_over_all_groups():
    groups = [[(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)], [(0.2, 0.0), (1.0, 0.5), (0.0, 0.0)], [(1.0, 1.0)] * 3]
    found = decoupled_advantages(groups, (1.0, 2.0))
    assert found[2] == [0.0] * 3
    assert torch.tensor(found).std().item() == pytest.approx(1.0)
    assert torch.tensor(found).mean(1).tolist() == pytest.approx([0.0] * 3, abs=1e-7)
    population = decoupled_advantages(groups, (1.0, 2.0), "population")
    assert torch.tensor(population).std(correction=0).item() == pytest.approx(1.0)


def test_decoupled_rules_that_cancel_leave_exactly_zero():
    """With equal weights they cancel; with others they do not, although the totals are equal then."""
    opposed = [(0.1, 0.9), (0.7, 0.3), (0.4, 0.6)]
    assert decoupled_advantages([opposed], (1.0, 1.0)) == [[0.0] * 3]
    assert decoupled_advantages([[(1.0, 0.0), (0.0, 2.0)]], (1.0, 0.5))[0] == pytest.approx([HALF, -HALF])


def test_decoupled_advantages_leave_none_out_of_every_rule():
    """Each rule compares the two completions that it judged: +-HALF each, and their sum has deviation 1 over three."""
    rows = [(1.0, None), (0.0, 1.0), (None, 0.0), (None, None)]
    assert decoupled_advantages([rows], (1.0, 1.0)) == [[pytest.approx(1.0), 0.0, pytest.approx(-1.0), None]]


def test_a_decoupled_group_of_one_has_zero_advantage():
    assert decoupled_advantages([[(0.7, 0.1)]], (1.0, 1.0)) == [[0.0]]


def test_rewards_are_summed_by_weight_before_they_are_compared_unless_told():
    groups = [[(1.0, 0.0), (0.0, 4.0)]]
    assert completion_advantages(groups, (1.0, 0.5), AdvantageConfig(scale_rewards="none")) == [[-0.5, 0.5]]
    decoupled = AdvantageConfig(multi_objective_aggregation="normalize_then_sum")
    assert completion_advantages(groups, (1.0, 0.5), decoupled)[0] == pytest.approx([HALF, -HALF])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_not_finite_are_refused(bad):
    with pytest.raises(InputError, match=f"completion 1 in group 1 is {bad}; it must be a finite number or None"):
        group_advantages([[1.0, 0.0], [1.0, bad]])
    with pytest.raises(InputError, match=f"completion 0 in rule 1 of group 0 is {bad}"):
        decoupled_advantages([[(1.0, bad), (1.0, 1.0)]], (1.0, 1.0))


def test_unknown_options_are_refused():
    with pytest.raises(InputError, match="scale_rewards is 'std'; it must be 'group', 'batch' or 'none'"):
        group_advantages([[1.0, 0.0]], "std")
    with pytest.raises(InputError, match="advantage_estimator is 'gae'; it must be 'grpo' or 'rloo'"):
        AdvantageConfig(advantage_estimator="gae")
    with pytest.raises(InputError, match="std_estimator is 'mad'; it must be 'sample' or 'population'"):
        AdvantageConfig(std_estimator="mad")
    with pytest.raises(InputError, match="multi_objective_aggregation is 'max'"):
        AdvantageConfig(multi_objective_aggregation="max")


@pytest.mark.parametrize("option", [{"scale_rewards": "batch"}, {"advantage_estimator": "rloo"}])
def test_options_that_decoupling_would_ignore_are_refused(option):
    with pytest.raises(InputError, match=f"{next(iter(option))} is .* where multi_objective_aggregation"):
        AdvantageConfig(multi_objective_aggregation="normalize_then_sum", **option)
