"""Difficulty: exact counts and weights, sampling that starves no question, group sizes with a fixed sum."""

import itertools
import json
import random

import pytest

from grpo.difficulty import Difficulty, allocate, success_rate
from grpo.errors import InputError
from grpo.groups import Completion, Group
from tests.grpo.conftest import task


def group(question: str, *rewards: float | None) -> Group:
    one = task(question)
    return Group("1.1", one, (Completion(one, (5, 1), "", False),) * len(rewards), tuple((r,) for r in rewards))


def test_the_success_rate_is_the_mean_of_the_first_reward():
    assert success_rate(group("a", 1.0, 0.0, 0.0, 0.0)) == 0.25
    assert success_rate(group("a", 0.5, None, 1.0)) == 0.75
    assert success_rate(group("a", None, None)) is None
    assert success_rate(group("a", 1.0, 0.0).with_rule("overlong@1", [-1.0, -1.0])) == 0.5


def test_rewards_outside_0_and_1_count_as_failed_and_solved():
    assert success_rate(group("a", 2.0, -1.0)) == 0.5


def test_a_question_never_tried_has_the_largest_weight():
    table = Difficulty(floor=0.1)
    assert (table.rate("a"), table.weight("a")) == (0.5, 1.0)


def test_rates_are_counted_on_top_of_the_prior():
    table = Difficulty(decay=1.0, prior=2.0)
    table.update([group("a", 1.0, 1.0, 0.0, 1.0)])
    table.update([group("a", 0.0, None), group("b", 0.0, 0.0)])
    assert table.rate("a") == (3 + 1) / (5 + 2)
    assert table.rate("b") == (0 + 1) / (2 + 2)


def test_what_an_earlier_policy_did_decays():
    table = Difficulty(decay=0.5, prior=1.0)
    table.update([group("a", 0.0, 0.0, 0.0, 0.0)])
    table.update([group("a", 1.0, 1.0)])
    assert table.rate("a") == (2 + 0.5) / (2 + 2 + 1)


def test_the_order_of_the_groups_of_a_step_does_not_matter():
    groups = [group("a", 1.0, 0.0), group("b", 1.0, 1.0), group("a", 0.0, 0.0)]
    first, second = Difficulty(decay=0.5), Difficulty(decay=0.5)
    for table, step in ((first, groups), (second, groups[::-1])):
        table.update([group("a", 1.0)])
        table.update(step)
    assert first.rate("a") == second.rate("a") == (0.5 + 1 + 0.5) / (0.5 + 4 + 1)
    assert first.rate("b") == second.rate("b")


def test_a_step_without_verdicts_forgets_nothing():
    table = Difficulty(decay=0.5)
    table.update([group("a", 1.0)])
    before = table.rate("a")
    table.update([group("a", None, None)])
    assert table.rate("a") == before


def test_the_weight_is_least_for_questions_always_or_never_solved():
    table = Difficulty(decay=1.0, prior=1.0, floor=0.2)
    table.update([group("always", *[1.0] * 9), group("never", *[0.0] * 9), group("often", *[1.0] * 7, 0.0, 0.0)])
    p = 9.5 / 10
    assert table.weight("always") == pytest.approx(0.2 + 0.8 * 4 * p * (1 - p))
    assert table.weight("never") == pytest.approx(table.weight("always"))
    assert table.weight("often") == pytest.approx(0.2 + 0.8 * 4 * 0.75 * 0.25)


def test_no_weight_falls_below_the_floor():
    table = Difficulty(decay=1.0, floor=0.25)
    for _ in range(100):
        table.update([group("a", *[0.0] * 1000)])
    assert 0.25 <= table.weight("a") < 0.2501


def test_an_order_has_every_task_once_a_pass():
    tasks = [task(name) for name in "abcde"]
    order = Difficulty().order(tasks, random.Random(0))
    for _ in range(3):
        assert sorted(t.id for t in itertools.islice(order, 5)) == list("abcde")


def test_an_order_depends_on_the_generator_alone():
    tasks = [task(str(i)) for i in range(20)]

    def ids(seed: int) -> list[str]:
        return [t.id for t in itertools.islice(Difficulty().order(tasks, random.Random(seed)), 50)]

    assert ids(1) == ids(1)
    assert ids(1) != ids(2)


def test_the_first_task_of_an_order_comes_by_weight():
    """In 20,000 draws the frequencies are within 4 standard errors of weight / sum of weights."""
    table = Difficulty(floor=0.2)
    table.load_state_dict({"questions": {"never": [0.0, 1e9], "mostly": [0.9 * 1e9, 1e9]}})
    tasks = [task("never"), task("new"), task("mostly")]
    weights = [table.weight(t.id) for t in tasks]
    assert weights == pytest.approx([0.2, 1.0, 0.2 + 0.8 * 0.36], rel=1e-6)
    rng = random.Random(0)
    first = [next(table.order(tasks, rng)).id for _ in range(20_000)]
    for one, weight in zip(tasks, weights, strict=True):
        share = weight / sum(weights)
        assert first.count(one.id) / 20_000 == pytest.approx(share, abs=4 * (share * (1 - share) / 20_000) ** 0.5)


def test_an_order_of_no_tasks_ends():
    assert list(Difficulty().order([], random.Random(0))) == []


def test_the_state_is_json_and_continues_bit_for_bit():
    table = Difficulty(decay=0.9)
    table.update([group("a", 1.0, 0.0, 0.3), group("b", 0.0)])
    state = json.loads(json.dumps(table.state_dict()))
    assert state == {"questions": {"a": [1.3, 3.0], "b": [0.0, 1.0]}}
    resumed = Difficulty(decay=0.9)
    resumed.load_state_dict(state)
    for one in (table, resumed):
        one.update([group("a", 0.7, 0.1)])
    assert resumed.state_dict() == table.state_dict()


@pytest.mark.parametrize(
    ("name", "bad"),
    [("decay", -0.1), ("decay", 1.5), ("prior", 0.0), ("prior", float("inf")), ("floor", 0.0), ("floor", 1.1)],
)
def test_impossible_settings_are_refused(name, bad):
    with pytest.raises(InputError, match=f"difficulty_{name} is {bad}; it must be"):
        Difficulty(**{name: bad})


@pytest.mark.parametrize(
    ("total", "low", "high", "weights", "sizes"),
    [
        (16, 4, 4, [1.0, 0.1, 0.5, 0.2], [4, 4, 4, 4]),
        (16, 2, 16, [1.0, 1.0, 1.0, 1.0], [4, 4, 4, 4]),
        (18, 2, 16, [1.0, 1.0, 1.0, 1.0], [5, 5, 4, 4]),
        (16, 2, 16, [3.0, 1.0, 0.0, 0.0], [8, 4, 2, 2]),
        (16, 2, 7, [3.0, 1.0, 0.0, 0.0], [7, 5, 2, 2]),
        (16, 2, 6, [1.0, 0.0, 0.0, 0.0], [6, 4, 3, 3]),
        (10, 2, 8, [0.0, 0.0, 0.0], [4, 3, 3]),
        (8, 2, 4, [1.0, 0.5], [4, 4]),
        (0, 1, 4, [], []),
    ],
)
def test_group_sizes_follow_the_weights_within_bounds(total, low, high, weights, sizes):
    assert allocate(total, low, high, weights) == sizes


def test_group_sizes_always_add_up_within_bounds():
    rng = random.Random(0)
    for _ in range(300):
        low = rng.randint(1, 4)
        high = low + rng.randint(0, 12)
        weights = [rng.choice([0.0, rng.random(), 1.0]) for _ in range(rng.randint(1, 12))]
        total = rng.randint(low * len(weights), high * len(weights))
        sizes = allocate(total, low, high, weights)
        assert sum(sizes) == total
        assert all(low <= size <= high for size in sizes)
        by_weight = [size for _, size in sorted(zip(weights, sizes, strict=True))]
        assert all(after >= before - 1 for before, after in itertools.pairwise(by_weight))


@pytest.mark.parametrize("total", [7, 33])
def test_totals_that_do_not_fit_are_refused(total):
    with pytest.raises(InputError, match=f"{total} completions cannot .* must be from 8 to 32"):
        allocate(total, 2, 8, [1.0] * 4)


@pytest.mark.parametrize(("low", "high"), [(0, 4), (5, 4)])
def test_bounds_that_are_impossible_are_refused(low, high):
    with pytest.raises(InputError, match=f"from {low} to {high} are impossible"):
        allocate(8, low, high, [1.0, 1.0])
