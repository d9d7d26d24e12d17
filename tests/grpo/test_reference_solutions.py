"""All-wrong groups yield the reference solutions of the data; no others do."""

import dataclasses

import pytest

from grpo.errors import InputError
from grpo.groups import Completion, Group
from grpo.reference_solutions import Solution, reference_solutions
from tests.grpo.conftest import task


def group(question: str, rewards: tuple[float | None, ...], **columns) -> Group:
    one = dataclasses.replace(task(question), columns=columns)
    return Group("1.1", one, (Completion(one, (5, 1), "", False),) * len(rewards), tuple((r,) for r in rewards))


def test_only_groups_that_are_all_wrong_give_their_solution():
    groups = [
        group("wrong", (0.0, 0.0), solution="1+1=2"),
        group("solved once", (0.0, 1.0), solution="a"),
        group("partly right", (0.0, 0.1), solution="b"),
        group("punished", (-1.0, 0.0), solution="2"),
        group("half judged", (None, 0.0), solution="3"),
        group("never judged", (None, None), solution="c"),
    ]
    prompt = groups[0].task.prompt_ids
    assert reference_solutions(groups, "solution") == [Solution(prompt, text) for text in ("1+1=2", "2", "3")]


def test_a_penalty_does_not_decide_what_is_wrong():
    solved = group("a", (1.0, 1.0), solution="x").with_rule("overlong@1", [-1.0, -1.0])
    assert reference_solutions([solved], "solution") == []


def test_a_question_gives_its_solution_once():
    twice = [group("a", (0.0, 0.0), solution="x")] * 2
    assert len(reference_solutions(twice, "solution")) == 1


def test_rows_without_a_solution_give_none():
    groups = [group("a", (0.0,), solution=None), group("b", (0.0,), solution="")]
    assert reference_solutions(groups, "solution") == []


def test_a_missing_column_is_refused_by_name():
    with pytest.raises(InputError, match="column 'solution' is not in the data of question a; its columns are answer"):
        reference_solutions([group("a", (1.0,), answer="3")], "solution")


def test_a_column_of_something_else_than_text_is_refused():
    with pytest.raises(InputError, match="column 'answer' of question a holds a int; it must be text"):
        reference_solutions([group("a", (0.0,), answer=3)], "answer")
