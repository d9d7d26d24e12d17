"""Completions at the length limit: masked, or punished along a ramp."""

import pytest

from grpo.advantages import group_advantages
from grpo.errors import InputError
from grpo.groups import Completion, Group
from grpo.truncation import is_masked, punish_overlong, soft_overlong_penalty
from tests.grpo.conftest import task


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0.0), (12, 0.0), (13, -0.25), (14, -0.5), (15, -0.75), (16, -1.0), (17, -1.0), (1000, -1.0)],
)
def test_the_penalty_falls_from_0_to_minus_1_over_the_cache(length, penalty):
    assert soft_overlong_penalty(length, max_completion_length=16, overlong_cache=4) == penalty


def test_the_values_of_the_paper():
    """16384 expected tokens and a cache of 4096."""
    assert soft_overlong_penalty(16384, 20480, 4096) == 0.0
    assert soft_overlong_penalty(18432, 20480, 4096) == -0.5
    assert soft_overlong_penalty(20480, 20480, 4096) == -1.0


@pytest.mark.parametrize("cache", [0, -1, 17])
def test_a_cache_outside_the_length_is_refused(cache):
    with pytest.raises(InputError, match=f"overlong_cache is {cache}; it must be at least 1 and at most .* .16."):
        soft_overlong_penalty(3, 16, cache)


def test_the_penalty_is_a_rule_of_its_own():
    lengths, rewards = (2, 3, 4, 4), ((1.0,), (1.0,), (0.0,), (None,))
    completions = tuple(Completion(task(), (5,) * n, "", truncated=n == 4) for n in lengths)
    group = punish_overlong(Group("1.1", task(), completions, rewards), max_completion_length=4, overlong_cache=2)
    assert group.task.rules == ("numeric@1", "overlong@1")
    assert group.rewards == ((1.0, 0.0), (1.0, -0.5), (0.0, -1.0), (None, None))
    assert group.totals((1.0, 1.0)) == [1.0, 0.5, -1.0, None]


def test_only_truncated_completions_are_masked_and_only_when_asked():
    cut, whole = (Completion(task(), (5, 6), "", truncated) for truncated in (True, False))
    assert [is_masked(c, True) for c in (cut, whole)] == [True, False]
    assert [is_masked(c, False) for c in (cut, whole)] == [False, False]


def test_a_masked_completion_stays_in_the_baseline():
    completions = tuple(Completion(task(), (5,), "", truncated) for truncated in (False, False, True, True))
    group = Group("1.1", task(), completions, ((1.0,), (0.0,), (0.0,), (0.0,)))
    (advantages,) = group_advantages([group.totals((1.0,))], "none")
    trained = [a for a, c in zip(advantages, completions, strict=True) if not is_masked(c, True)]
    assert trained == [0.75, -0.25]
