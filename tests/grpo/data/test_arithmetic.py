"""The addition problems and their partition."""

import hashlib
from typing import get_args

import pytest

from grpo.data.arithmetic import Split, addition_problems

SPLITS = get_args(Split)


def operands(problem) -> tuple[int, int]:
    a, b = problem["prompt"].removesuffix("=").split("+")
    return int(a), int(b)


def test_every_sum_is_in_exactly_one_split():
    sums = [operands(problem) for split in SPLITS for problem in addition_problems(split)]
    assert sorted(sums) == [(a, b) for a in range(10, 100) for b in range(10, 100)]


@pytest.mark.parametrize("split", SPLITS)
def test_both_orders_of_a_pair_are_on_the_same_side(split):
    pairs = {operands(problem) for problem in addition_problems(split)}
    assert pairs == {(b, a) for a, b in pairs}


@pytest.mark.parametrize("split", SPLITS)
def test_answers_are_right(split):
    assert all(int(problem["answer"]) == sum(operands(problem)) for problem in addition_problems(split))
    assert all(problem["prompt"] == "{}+{}=".format(*operands(problem)) for problem in addition_problems(split))


def test_sizes():
    assert {split: len(addition_problems(split)) for split in SPLITS} == {
        "warm_start": 2972,
        "train": 3946,
        "held_out": 1182,
    }


@pytest.mark.parametrize(
    ("split", "digest"),
    [("warm_start", "b089fe7ed51b"), ("train", "f35519c273f0"), ("held_out", "c89b99b2433c")],
)
def test_the_partition_is_the_one_that_the_shipped_model_was_made_with(split, digest):
    prompts = "".join(problem["prompt"] for problem in addition_problems(split))
    assert hashlib.sha256(prompts.encode()).hexdigest()[:12] == digest


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="split must be one of warm_start, train, held_out; got 'test'"):
        addition_problems("test")  # type: ignore[arg-type]
