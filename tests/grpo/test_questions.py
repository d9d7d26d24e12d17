"""Every question once an epoch, in an order that the seed decides and a resumed run goes on with."""

import itertools

import pytest

from grpo.errors import InputError
from grpo.questions import Questions, endless
from tests.grpo.conftest import task

TASKS = [task(str(n)) for n in range(5)]


def test_every_question_comes_once_an_epoch():
    order = [t.id for t in itertools.islice(endless(TASKS, seed=0), 15)]
    epochs = [order[n : n + 5] for n in (0, 5, 10)]
    assert all(sorted(epoch) == list("01234") for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert order != [t.id for t in itertools.islice(endless(TASKS, seed=1), 15)]


def test_the_place_in_the_order_can_be_saved():
    whole, first = Questions(TASKS, 0), Questions(TASKS, 0)
    expected = [t.id for t in itertools.islice(whole.for_step(0), 20)]
    got = [t.id for t in itertools.islice(first.for_step(0), 7)]
    resumed = Questions(TASKS, 0)
    resumed.load_state_dict(first.state_dict())
    assert got + [t.id for t in itertools.islice(resumed.for_step(3), 13)] == expected


def test_without_questions_there_is_no_training():
    with pytest.raises(InputError, match="no questions"):
        Questions([], 0)
