"""The options of runs as a report shows them."""

from dataclasses import asdict

from grpo.config import TrainConfig
from grpo.report.configuration import settings, without_sandbox, written


def by_name(*configs):
    return {setting.name: setting for setting in settings(configs)}


def test_an_option_is_changed_where_it_is_not_its_default():
    found = by_name(asdict(TrainConfig(beta=0.04)))
    assert [name for name, setting in found.items() if setting.is_changed] == ["beta"]
    assert (found["beta"].values, found["beta"].default) == (("0.04",), "0")
    assert "weight of the KL" in found["beta"].help


def test_a_whole_number_equals_the_same_fraction():
    assert not by_name({"beta": 0})["beta"].is_changed


def test_runs_differ_in_what_both_have():
    found = by_name({"beta": 0.1, "seed": 1, "optim": "adamw"}, {"beta": 0.1, "seed": 2})
    assert [name for name, setting in found.items() if setting.differs] == ["seed"]
    assert found["optim"].values == ("adamw", None)


def test_an_option_of_another_version_is_shown_last():
    found = by_name({"colour": "red", "beta": 0.1})
    assert list(found) == ["beta", "colour"]
    assert found["colour"].values == ("red",)


def test_values_are_written_as_on_the_command_line():
    values = (None, True, 5e-5, 32.0, ("a", "b"), [], "x\x1b")
    assert list(map(written, values)) == ["not set", "true", "5e-05", "32", "a b", "none", "x\\x1b"]


def test_rewards_without_a_sandbox_are_found():
    specs = ["code:timeout=3,unsafe_sandbox=true", "code:unsafe_sandbox=false", "mine.py:unsafe_sandbox", "numeric"]
    assert without_sandbox({"reward": specs}) == ["code:timeout=3,unsafe_sandbox=true"]
    assert without_sandbox({}) == []
