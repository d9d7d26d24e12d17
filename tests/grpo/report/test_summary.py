"""The figures at the top of a report."""

import pytest

from grpo.report.runs import read_runs
from grpo.report.summary import alarms, duration, facts, first_and_last, time_shares, verdict
from tests.grpo.report.conftest import RunFolder, metrics, sample


@pytest.fixture
def read(tmp_path):
    return lambda **parts: read_runs([RunFolder(**parts).write(tmp_path / "run")])[0]


def test_the_figures_of_a_run(read):
    found = {fact.label: (fact.value, fact.note) for fact in facts(read())}
    assert found["Held-out accuracy, first"] == ("40.0%", "step 0, 95% interval 30 to 50%")
    assert found["Held-out accuracy, latest"] == ("80.0%", "step 50, 95% interval 70 to 90%")
    value, note = found["Difference"]
    assert value == "+40.0 points" and note.endswith("on the same 10 questions")
    assert found["Reward"][1] == "means of the first and last 5 steps"
    assert found["Steps"] == ("50 of 50", "finished")
    assert found["Time of the steps"] == ("4 min 10 s", "and 12.0 s of evaluations")
    assert found["Tokens"] == ("250,000", "1,000 a second")


def test_a_run_that_goes_on_has_the_same_figures_and_gaps(read):
    run = read(metrics=[metrics(n, 50) for n in range(1, 8)], samples=None)
    found = {fact.label: (fact.value, fact.note) for fact in facts(run)}
    assert found["Steps"] == ("7 of 50", "not finished: training now, or interrupted")
    assert found["Held-out accuracy, first"] == found["Difference"] == ("", "")


@pytest.mark.parametrize(
    ("evaluated", "right", "words"),
    [
        ((), None, "This run has no held-out evaluation"),
        ((0,), None, "Held-out accuracy was 40.0% at step 0; there is no later evaluation yet."),
        ((0, 50), None, "Held-out accuracy went from 40.0% to 80.0%."),
        ((0, 50), (40, 80), "Held-out accuracy rose from 40.0% to 80.0%."),
        ((0, 50), (80, 40), "Held-out accuracy fell"),
        ((0, 50), (40, 42), "no clear change, the interval of the difference includes 0"),
    ],
)
def test_the_verdict_says_no_more_than_the_interval(read, evaluated, right, words):
    rows = [metrics(n, 50, n in evaluated) for n in range(51)]
    samples = None
    if right:
        samples = [
            sample(s, "held_out", f"q{n}", "", n < r) for s, r in zip((0, 50), right, strict=True) for n in range(100)
        ]
    assert words in verdict(read(metrics=rows, samples=samples))


def test_critical_alarms_come_first(read):
    def alarm(step, severity):
        return {"step": step, "name": "length_hacking", "severity": severity, "message": "m", "advice": "a"}

    found = alarms(read(alarms=[alarm(3, "warning"), alarm(9, "critical"), alarm(1, "warning")]))
    assert [(a.severity, a.step) for a in found] == [("critical", 9), ("warning", 1), ("warning", 3)]
    assert found[0].name == "length hacking"


def test_shares_of_the_time_add_up(read):
    found = time_shares(read())
    assert [share.name for share in found] == ["rollout", "train", "evaluation", "the rest"]
    assert sum(share.share for share in found) == pytest.approx(1)
    assert found[0].seconds == 150


def test_the_ends_of_a_noisy_series_are_means():
    assert first_and_last([]) is None
    assert first_and_last([1.0, 2.0]) == (1, 2, 1)
    assert first_and_last([0.0, 2.0] + [5.0] * 16 + [6.0, 8.0]) == (1, 7, 2)


def test_durations():
    assert [duration(s) for s in (3.21, 59.0, 61.0, 7300.0)] == ["3.2 s", "59.0 s", "1 min 1 s", "2 h 1 min"]
