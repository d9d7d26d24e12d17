"""Means are sums over counts."""

import pytest

from grpo.groups import Completion, Group
from grpo.metrics import TokenMeans, rollout_metrics
from tests.grpo.conftest import EOS, task


def test_parts_count_by_their_tokens():
    means = TokenMeans()
    means.add("clipped", 3 / 12, 12)
    means.add("clipped", 3 / 4, 4)
    assert means.read() == {"clipped": 0.375}


def test_rollout_metrics():
    one = task(rules=("numeric@1", "format@1"))
    short, long = Completion(one, (EOS,), "", False), Completion(one, (5, 6, 7), "", True)
    groups = [
        Group("1", one, (short, long), ((1.0, 0.0), (0.0, None))),
        Group("2", one, (short, short), ((1.0, 1.0), (1.0, 1.0))),
    ]
    metrics = rollout_metrics(groups, ["numeric", "format"], (1.0, 2.0))
    assert metrics == pytest.approx(
        {
            "reward": (1 + 0 + 3 + 3) / 4,
            "reward_std": 0.5**0.5 / 2,
            "rewards/numeric/mean": 3 / 4,
            "rewards/numeric/std": 0.5,
            "rewards/format/mean": 2 / 3,
            "rewards/format/std": 3**-0.5,
            "frac_reward_zero_std": 0.5,
            "frac_all_right": 0.5,
            "frac_all_wrong": 0.0,
            "frac_no_verdict": 0.0,
            "completions/mean_length": 6 / 4,
            "completions/min_length": 1,
            "completions/max_length": 3,
            "completions/mean_terminated_length": 1.0,
            "completions/clipped_ratio": 1 / 4,
        }
    )


def test_means_over_no_verdicts_are_left_out():
    group = Group("1", task(), (Completion(task(), (EOS,), "", False),), ((None,),))
    assert "reward" not in rollout_metrics([group], ["numeric"], (1.0,))
