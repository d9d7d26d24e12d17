"""A reward that fails on one sample leaves the others alone, and says why; what it returns is checked."""

import pytest

from grpo.errors import InputError
from grpo.groups import Completion
from grpo.rewards import Reward, RewardRunner, find_rewards
from tests.grpo.conftest import task


def completions(*texts: str) -> list[Completion]:
    return [Completion(task(str(n), rules=("r@1",)), (5,), text, False) for n, text in enumerate(texts)]


def run(function, *texts: str, on_error: str = "none"):
    return RewardRunner([Reward("mine", 1, function)], on_error).score(completions(*texts))


def lengths(completions, **_):
    return [float(len(text)) for text in completions]


def fails_on_b(completions, **_):
    return [1.0 / (text != "b") for text in completions]


def test_verdicts_are_rows():
    assert run(lengths, "a", "bb").rows == [(1.0,), (2.0,)]
    assert run(lengths).rows == []


def test_siblings_of_a_failing_sample_are_judged():
    scores = run(fails_on_b, "a", "b", "c")
    assert scores.rows == [(1.0,), (None,), (1.0,)]
    ((failure),) = scores.failures
    assert (failure.reward, failure.sample) == ("mine", 1)
    assert failure.reason.startswith("ZeroDivisionError: ")


def test_or_the_run_ends_at_once():
    with pytest.raises(InputError, match="reward mine failed: ZeroDivisionError"):
        run(fails_on_b, "a", "b", on_error="stop")


def test_a_wrong_count_is_a_failure_of_those_samples():
    scores = run(lambda completions, **_: [1.0] if len(completions) == 1 else [], "a", "b")
    assert scores.rows == [(1.0,), (1.0,)] and not scores.failures
    scores = run(lambda completions, **_: 1.0, "a")
    assert scores.rows == [(None,)] and "returned a float for 1 completions" in scores.failures[0].reason


def test_async_functions_are_waited_for():
    async def later(completions, **_):
        return [2.0] * len(completions)

    assert run(later, "a").rows == [(2.0,)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", [1.0]])
def test_a_verdict_that_is_no_number_is_refused_by_name_and_sample(bad):
    with pytest.raises(InputError, match=r"reward mine returned .* for sample 1 \(1\)"):
        run(lambda completions, **_: [1.0, bad][: len(completions)], "a", "b")


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def short(completions, limit, **_):\n    return [float(len(c) < 3) for c in completions]\n")
    (reward,) = find_rewards([f"{path}:short"])
    assert (reward.name, reward.columns) == ("short", ["limit"])
    before = reward.rule
    path.write_text(path.read_text().replace("< 3", "< 4"))
    assert find_rewards([f"{path}:short"])[0].rule != before


def test_options_are_set_in_their_types_and_change_the_rule():
    plain, set_ = find_rewards(["code"])[0], find_rewards(["code:fraction=true,timeout_s=3"])[0]
    assert set_.function.keywords == {"fraction": True, "timeout_s": 3.0}
    assert plain.rule == "code@1" and set_.rule.startswith("code@1:")
    assert set_.columns == plain.columns == ["tests"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nothing", "there is no such reward; choose from choice, code, .*, or name a function"),
        ("code:fractions=1", "'fractions=1' is no option=value of code; its options: entry_point"),
        ("code:fraction=1", "fraction is '1'; it must be true or false"),
        ("code:timeout_s=x", "timeout_s is 'x'; it must be a number"),
        ("nothing.py:f", "there is no file nothing.py"),
        ("nothing.at_all:f", "nothing.at_all cannot be loaded: ModuleNotFoundError"),
        ("statistics:f", "statistics has no function 'f'"),
    ],
)
def test_what_is_not_there_is_said(spec, message):
    with pytest.raises(InputError, match=message):
        find_rewards([spec])


def test_a_verdict_may_be_made_of_parts():
    def parts(completions, **_):
        return [{"total": 1.5, "tone": 0.5, "style": None}, {"total": None}]

    scores = RewardRunner([Reward("plain", 1, lengths), Reward("mine", 1, parts)]).score(completions("a", "bb"))
    assert scores.rows == [(1.0, 1.5), (2.0, None)]
    assert scores.parts == [{"mine/tone": 0.5, "mine/style": None}, {}]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tone": 1.0}, "returned parts without a total for sample 0"),
        ({"total": 1.0, "tone": "x"}, "returned 'x' for sample 0"),
        ({"total": float("inf")}, "returned inf for sample 0"),
    ],
)
def test_parts_are_checked_as_totals_are(bad, message):
    with pytest.raises(InputError, match=message):
        run(lambda completions, **_: [bad], "a")
