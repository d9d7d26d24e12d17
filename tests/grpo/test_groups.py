"""A group holds completions of one task, and says so when it does not."""

import dataclasses

import pytest

from grpo.groups import Completion, Group
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
