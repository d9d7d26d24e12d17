"""Which completions are shown, and how much of them."""

import json
from itertools import pairwise

import pytest

from grpo.report import samples as module
from grpo.report.samples import cards, choose, fitting, is_right, shortened, shown, spread
from tests.grpo.report.conftest import sample


def test_a_question_keeps_its_first_and_its_latest_answer():
    rows = [sample(step, "held_out", "q", f"at {step}", True) for step in (0, 5, 10)]
    (pair,) = choose(rows).pairs["held_out"]
    assert (pair.first["step"], pair.last["step"]) == (0, 10)


def test_a_question_that_is_asked_several_times_is_compared_try_by_try():
    rows = [sample(step, "probe", "q", f"{step}.{n}", True) for step in (0, 5) for n in range(3)]
    pairs = choose(rows).pairs["probe"]
    assert [(p.first["completion"], p.last["completion"]) for p in pairs] == [(f"0.{n}", f"5.{n}") for n in range(3)]


@pytest.mark.parametrize(("groups", "low", "high"), [(7, 7, 7), (59, 59, 59), (60, 30, 59), (10_000, 30, 59)])
def test_training_groups_are_whole_and_evenly_spread(groups, low, high):
    rows = [sample(step, "train", f"q{step}", str(n), True) for step in range(groups) for n in range(3)]
    kept = choose(rows).groups
    assert low <= len(kept) <= high
    assert all(len(group) == 3 and len({row["step"] for row in group}) == 1 for group in kept)
    steps = [group[0]["step"] for group in kept]
    assert len({b - a for a, b in pairwise(steps)}) == 1


@pytest.mark.parametrize(
    ("rewards", "parts", "right"),
    [
        ({"numeric": 1.0, "format": 0.0}, None, True),
        ({"numeric": 0.9, "format": 1.0}, None, False),
        ({"numeric": None}, None, None),
        ({"xml": 0.5}, {"xml/correct": 1.0, "xml/format": 0.0}, True),
        ({"xml": 1.5}, {"xml/correct": 0.0, "xml/format": 1.0}, False),
        ({}, None, None),
    ],
)
def test_right_is_what_the_first_reward_or_its_first_part_says(rewards, parts, right):
    assert is_right({"rewards": rewards, **({"parts": parts} if parts else {})}) is right


def test_cards_put_probes_first_and_tell_everything_about_an_answer():
    rows = [sample(0, "held_out", "h", "a", False), sample(0, "probe", "p", "b", True)]
    rows += [
        sample(9, "probe", "p", "c", False, prompt=[{"role": "user", "content": "hi"}], parts={"numeric/x": 0.5}),
        sample(9, "train", "t", "d", True, answer=12),
    ]
    probe, held_out, train = cards(choose(rows))
    assert [card["split"] for card in (probe, held_out, train)] == ["probe", "held_out", "train"]
    assert [answer["text"] for answer in probe["answers"]] == ["b", "c"]
    assert probe["answers"][1]["scores"] == [("numeric", 0.0), ("numeric/x", 0.5)]
    assert [answer["text"] for answer in held_out["answers"]] == ["a"]
    assert train["answer"] == "12"


def test_of_many_questions_some_are_shown_evenly_spread(monkeypatch):
    monkeypatch.setattr(module, "QUESTIONS", 4)
    rows = [sample(0, "held_out", f"q{n}", "a", True) for n in range(100)]
    assert [card["question"] for card in cards(choose(rows))] == ["q0", "q25", "q50", "q75"]
    assert spread([1, 2], 4) == [1, 2]


def test_a_long_text_keeps_its_beginning_and_its_end():
    text = "a" * 5000 + "the answer is 7"
    short = shortened(text, 300)
    assert short.startswith("a" * 200) and short.endswith("the answer is 7")
    assert "[... 4,715 characters left out ...]" in short
    assert shortened("short", 300) == "short"


def test_everything_together_has_a_bounded_size():
    rows = [sample(step, "held_out", f"q{n}", "é" * 9000, True) for step in (0, 9) for n in range(100)]
    kept, length = fitting(cards(choose(rows)), size=200_000)
    assert len(kept) == 100
    assert len(json.dumps(kept, ensure_ascii=False).encode()) <= 200_000
    assert length < 1000


def test_what_steers_a_terminal_or_turns_text_around_is_written_as_an_escape():
    assert shown("a\x1b[31mred\u202e\ud800\n\tend") == "a\\x1b[31mred\\u202e\\ud800\n    end"
