"""Dead groups are kept, dropped or replaced; always bounded, everything left out counted."""

import itertools

import pytest

from grpo.advantages import AdvantageConfig
from grpo.errors import InputError
from grpo.groups import Completion, Group, Task
from grpo.selection import is_dead, select
from tests.grpo.conftest import task

ALIVE, DEAD = ((1.0,), (0.0,)), ((1.0,), (1.0,))


def group(name: str, rewards=ALIVE, truncated=(False, False)) -> Group:
    one = task(name, rules=tuple(f"rule{i}@1" for i in range(len(rewards[0]))))
    return Group(name, one, tuple(Completion(one, (5, 6, 1), "", cut) for cut in truncated), rewards)


def dead(of: Group) -> bool:
    return is_dead(of, (1.0,))


class Sampler:
    """Answers every question of `dead_ids` alike; remembers what it was asked."""

    def __init__(self, dead_ids: str) -> None:
        self.dead_ids = dead_ids
        self.asked: list[str] = []

    def __call__(self, tasks: list[Task]) -> list[Group]:
        self.asked.append("".join(t.id for t in tasks))
        return [group(t.id, DEAD if t.id in self.dead_ids else ALIVE) for t in tasks]


def questions(ids: str):
    return iter([task(name) for name in ids])


def ids(groups: list[Group]) -> str:
    return "".join(g.task.id for g in groups)


def test_keep_trains_on_everything_and_counts_the_dead():
    sampler, tasks = Sampler("ac"), questions("abcdef")
    selected = select(sampler, tasks, 3, dead, "keep", max_rounds=5)
    assert (ids(selected.groups), ids(selected.discarded)) == ("abc", "")
    assert (selected.dead, selected.rounds, sampler.asked) == (2, 1, ["abc"])
    assert next(tasks).id == "d"


def test_drop_trains_on_the_rest():
    sampler = Sampler("ac")
    selected = select(sampler, questions("abcdef"), 3, dead, "drop", max_rounds=5)
    assert (ids(selected.groups), ids(selected.discarded)) == ("b", "ac")
    assert (selected.dead, selected.rounds, sampler.asked) == (2, 1, ["abc"])


def test_drop_may_leave_nothing():
    assert select(Sampler("ab"), questions("ab"), 2, dead, "drop").groups == []


def test_resample_asks_the_next_questions_until_the_step_is_full():
    sampler, tasks = Sampler("acd"), questions("abcdefgh")
    selected = select(sampler, tasks, 3, dead, "resample", max_rounds=9)
    assert sampler.asked == ["abc", "de", "f"]
    assert (ids(selected.groups), ids(selected.discarded)) == ("bef", "acd")
    assert (selected.dead, selected.rounds) == (3, 3)
    assert next(tasks).id == "g"


def test_resample_stops_at_the_bound_and_fills_up_with_the_first_dead_groups():
    sampler = Sampler("acde")
    selected = select(sampler, questions("abcdefgh"), 3, dead, "resample", max_rounds=2)
    assert sampler.asked == ["abc", "de"]
    assert (ids(selected.groups), ids(selected.discarded)) == ("bac", "de")
    assert selected.dead == 4


def test_a_data_set_without_any_signal_ends():
    sampler = Sampler("ab")
    selected = select(sampler, itertools.cycle([task("a"), task("b")]), 2, dead, "resample", max_rounds=10)
    assert sampler.asked == ["ab"] * 10
    assert (ids(selected.groups), len(selected.discarded)) == ("ab", 18)


def test_questions_may_run_out():
    selected = select(Sampler("a"), questions("abc"), 4, dead, "resample", max_rounds=10)
    assert (ids(selected.groups), selected.rounds) == ("bca", 1)
    assert select(Sampler(""), questions(""), 4, dead, "resample", max_rounds=10).groups == []


def test_everything_left_out_is_counted():
    selected = select(Sampler("acd"), questions("abcdefgh"), 3, dead, "resample", max_rounds=9)
    assert selected.metrics() == {
        "sampling/rounds": 3.0,
        "sampling/dead_groups": 3.0,
        "sampling/discarded_groups": 3.0,
        "sampling/discarded_completions": 6.0,
        "sampling/discarded_tokens": 18.0,
    }


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        (ALIVE, False),
        (DEAD, True),
        (((0.1 + 0.2,), (0.3,)), True),
        (((1.0,), (None,)), True),
        (((None,), (None,)), True),
    ],
)
def test_a_group_is_dead_where_every_advantage_is_zero_or_none(rewards, expected):
    assert is_dead(group("a", rewards), (1.0,)) is expected


def test_deadness_is_that_of_the_advantages_that_are_trained_on():
    """Equal totals, but rules that do not cancel once each has its own scale."""
    both = group("a", ((1.0, 0.0), (0.0, 2.0)))
    assert is_dead(both, (1.0, 0.5))
    assert not is_dead(both, (1.0, 0.5), AdvantageConfig(multi_objective_aggregation="normalize_then_sum"))


def test_a_group_whose_differences_are_all_masked_is_dead():
    rewards = ((1.0,), (0.5,), (0.0,))
    only_the_mean_is_whole = group("a", rewards, truncated=(True, False, True))
    assert is_dead(only_the_mean_is_whole, (1.0,), mask_truncated_completions=True)
    assert not is_dead(only_the_mean_is_whole, (1.0,))
    assert not is_dead(group("a", rewards, (True, False, False)), (1.0,), mask_truncated_completions=True)


def test_impossible_settings_are_refused():
    with pytest.raises(InputError, match="dead_groups is 'ignore'; it must be 'keep', 'drop' or 'resample'"):
        select(Sampler(""), questions("a"), 1, dead, "ignore")
    with pytest.raises(InputError, match="max_rounds is 0; it must be at least 1"):
        select(Sampler(""), questions("a"), 1, dead, "resample", max_rounds=0)


def test_a_sampler_that_loses_groups_is_refused():
    with pytest.raises(ValueError, match="sample returned 0 groups for 2 tasks"):
        select(lambda tasks: [], questions("ab"), 2, dead)
