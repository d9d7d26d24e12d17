"""A group holds completions of one task, and says so when it does not."""

import dataclasses
import math

import pytest

from grpo.errors import InputError
from grpo.groups import Completion, Group, group_temperatures
from tests.grpo.conftest import task


def completion(of) -> Completion:
    return Completion(of, (5, 1), "3", truncated=False)


def test_a_group_of_one_task_is_accepted():
    group = Group("1.1", task(), (completion(task()),) * 2, ((1.0,), (0.0,)))
    assert group.totals((2.0,)) == [2.0, 0.0]


@pytest.mark.parametrize(
    "change",
    [{"id": "another"}, {"system_prompt": "Be brief."}, {"rules": ("numeric@2",)}],
    ids=lambda c: next(iter(c)),
)
def test_a_group_that_mixes_tasks_is_refused(change):
    other = dataclasses.replace(task(), **change)
    with pytest.raises(ValueError, match=f"mixes tasks: completion 1 has {next(iter(change))}"):
        Group("1.1", task(), (completion(task()), completion(other)), ((1.0,), (0.0,)))


@pytest.mark.parametrize(
    "change",
    [{"prompt": "1+3="}, {"prompt_ids": (5,)}, {"columns": {"answer": "4"}}],
    ids=lambda c: next(iter(c)),
)
def test_a_group_that_mixes_prompts_or_data_rows_is_refused_by_fingerprint(change):
    other = dataclasses.replace(task(), **change)
    with pytest.raises(ValueError, match=f"completion 1 has fingerprint '{other.fingerprint}', the group '"):
        Group("1.1", task(), (completion(task()), completion(other)), ((1.0,), (0.0,)))


def test_the_fingerprint_does_not_depend_on_where_the_data_lies():
    assert task("a.jsonl line 1").fingerprint == task("b.jsonl line 7").fingerprint
    assert task().fingerprint != task(rules=("numeric@2",)).fingerprint
    assert task().fingerprint != dataclasses.replace(task(), system_prompt="Be brief.").fingerprint


def test_questions_with_the_same_text_are_different_questions():
    with pytest.raises(ValueError, match="mixes"):
        Group("1.1", task("q1"), (completion(task("q1")), completion(task("q2"))), ((1.0,), (0.0,)))


def test_rewards_must_match_completions_and_rules():
    with pytest.raises(ValueError, match="2 completions and 1 rewards"):
        Group("1.1", task(), (completion(task()),) * 2, ((1.0,),))
    with pytest.raises(ValueError, match="1 rules and a reward row of 2"):
        Group("1.1", task(), (completion(task()),), ((1.0, 0.0),))
    with pytest.raises(ValueError, match="no completions"):
        Group("1.1", task(), (), ())


def test_the_total_ignores_rules_without_a_verdict():
    both = task(rules=("numeric@1", "format@1"))
    group = Group("1.1", both, (completion(both),) * 3, ((1.0, 1.0), (1.0, None), (None, None)))
    assert group.totals((1.0, 0.5)) == [1.5, 1.0, None]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused_by_rule_and_sample(bad):
    both = task("q7", rules=("numeric@1", "format@1"))
    with pytest.raises(InputError, match=f"reward format@1 is {bad} for completion 1 of group 1.1 .q7."):
        Group("1.1", both, (completion(both),) * 2, ((1.0, None), (1.0, bad)))


def test_another_rule_is_one_more_column():
    group = Group("1.1", task(), (completion(task()),) * 2, ((1.0,), (0.0,))).with_rule("kl@1", [-0.5, -0.25])
    assert group.task.rules == ("numeric@1", "kl@1")
    assert group.rewards == ((1.0, -0.5), (0.0, -0.25))
    assert all(c.task == group.task for c in group.completions)
    assert group.totals((1.0, 2.0)) == [0.0, -0.5]


def test_another_rule_does_not_judge_what_no_rule_judged():
    group = Group("1.1", task(), (completion(task()),) * 2, ((None,), (0.0,))).with_rule("kl@1", [-0.5, -0.25])
    assert group.rewards == ((None, None), (0.0, -0.25))
    assert group.totals((1.0, 1.0)) == [None, -0.25]


def test_the_sampler_gives_one_log_probability_a_token():
    assert Completion(task(), (5, 1), "3", False, 0.5, (-0.1, -0.2)).sampler_logps == (-0.1, -0.2)
    with pytest.raises(ValueError, match="2 tokens and 1 sampler_logps"):
        Completion(task(), (5, 1), "3", False, sampler_logps=(-0.1,))


def test_the_temperatures_of_a_group_take_turns():
    assert group_temperatures((0.5, 1.0), 4) == (0.5, 1.0, 0.5, 1.0)
    assert group_temperatures((0.6, 0.8, 1.2), 5) == (0.6, 0.8, 1.2, 0.6, 0.8)
    assert group_temperatures((0.7,), 3) == (0.7, 0.7, 0.7)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_temperatures_that_cannot_be_sampled_at_are_refused(bad):
    with pytest.raises(InputError, match=f"temperatures has {bad}; each must be a finite number above 0"):
        group_temperatures((1.0, bad), 2)
    with pytest.raises(InputError, match="at least one"):
        group_temperatures((), 2)
