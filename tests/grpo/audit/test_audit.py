"""Rewards that can be gamed are found out, and sound ones are shown as they are."""

import json
import re

import pytest

from grpo.audit import AuditReport, attempts, audit
from grpo.cli import main
from grpo.errors import InputError
from grpo.groups import Task
from grpo.rewards import Reward, find_rewards


def tasks(answers=("14", "3", "120"), rules=("x@1",), **columns) -> list[Task]:
    return [Task(f"row {n}", None, rules, f"Question {n * 7 + 1}?", (), {"answer": a, **columns})
            for n, a in enumerate(answers)]  # fmt: skip


def reward(judge, name="x") -> Reward:
    """A reward from f(completion, answer)."""

    def function(*, completions, answer, **_):
        return [judge(c, str(a)) for c, a in zip(completions, answer, strict=True)]

    return Reward(name, 1, function)


def kinds(report: AuditReport) -> dict:
    return {kind.name: kind for kind in report.kinds}


def caught(report: AuditReport) -> set[str]:
    return {finding.partition(":")[0] for finding in report.findings}


def test_a_substring_check_is_caught():
    report = audit([reward(lambda text, answer: float(answer in text))], tasks())
    assert not report.passed
    assert {"many answers in a row", "right answer among others"} <= caught(report)
    assert "empty" not in caught(report)
    assert report.highest_non_answer.highest == report.full_score == 1


@pytest.mark.parametrize(
    ("judge", "kind"),
    [
        (lambda text, answer: 1.0, "empty"),
        (lambda text, answer: float(bool(re.search("therefore.*verify", text)) or text == answer), "keyword stuffing"),
        (lambda text, answer: float("correct" in text or text == answer), "claims to be right"),
        (lambda text, answer: float("<answer>" in text), "form without content"),
        (lambda text, answer: float("<answer>" in text), "wrong answer, right form"),
        (lambda text, answer: float(len(text) > 5000 or text == answer), "very long"),
        (lambda text, answer: float("Question" in text or text == answer), "question echoed"),
        (lambda text, answer: float(text in "1 8 15" or text == answer), "numbers of the prompt"),
    ],
)
def test_each_kind_of_game_is_caught(judge, kind):
    assert kind in caught(audit([reward(judge)], tasks()))


def test_an_ignored_unit_is_caught_where_the_answer_has_one():
    first_number = reward(lambda text, answer: float(re.findall(r"\d+", text)[:1] == re.findall(r"\d+", answer)))
    assert "unit changed" in caught(audit([first_number], tasks(("14 km", "3 g"))))
    report = audit([first_number], tasks(("14", "3")))
    assert (kinds(report)["unit added"].role, kinds(report)["unit added"].mean) == ("unclear", 1)


def test_a_program_that_ends_early_is_caught():
    exits = reward(lambda text, answer: float("exit" in text or text == answer))
    report = audit([exits], tasks(("def f(n):\n    return n",), tests=["assert f(1) == 1"]))
    assert "program that ends early" in caught(report)


def test_an_exact_check_passes():
    report = audit([reward(lambda text, answer: float(text == answer))], tasks())
    assert report.passed and report.refused == ()
    assert kinds(report)["right: bare"].full_share == 1
    assert kinds(report)["right: <answer>"].full_share == 0
    assert report.highest_non_answer.highest == 0


def test_the_rewards_that_ship_are_shown_as_they_are():
    judges = find_rewards(["numeric", "format"])
    report = audit(judges, tasks(rules=tuple(r.rule for r in judges)))
    found = kinds(report)
    assert report.passed and report.full_score == 2
    assert found["right: bare"].rewards == (1, 0)
    assert found["right: <answer>"].rewards == (1, 1)
    assert found["form without content"].rewards == (0, 1)
    assert found["right answer among others"].highest == 1
    assert found["unit added"].highest == 2


def test_form_that_outweighs_correctness_is_caught():
    judges = find_rewards(["numeric", "format"])
    report = audit(judges, tasks(rules=tuple(r.rule for r in judges)), weights=(1.0, 3.0))
    assert "wrong answer, right form: beats a right answer in another form at 100% of the tasks" in report.findings


def test_the_effect_of_length_alone_is_measured():
    brief = reward(lambda text, answer: (answer in text) - min(len(text) / 16000, 1.0))
    points = audit([brief], tasks(("14",))).lengths
    assert [point.characters for point in points] == [0, 250, 1000, 4000, 16000]
    assert [round(point.before, 1) for point in points] == [1.0, 1.0, 0.9, 0.7, 0.0]
    assert points[-1].alone == -1


def test_right_answers_that_are_refused_are_listed():
    report = audit([reward(lambda text, answer: float(text == answer != "3"))], tasks())
    assert [(r.task, r.answer, r.total) for r in report.refused] == [("row 1", "3", 0)]


def test_no_verdict_is_no_reward():
    report = audit([reward(lambda text, answer: 1.0 if text == answer else None)], tasks())
    assert report.passed
    assert kinds(report)["empty"].mean is None
    assert audit([reward(lambda text, answer: None)], tasks()).findings == ("no right answer gets a verdict",)


def test_chance_is_tolerated_up_to_a_share():
    lucky = reward(lambda text, answer: float(text == answer or (text == "" and answer == "3")))
    assert caught(audit([lucky], tasks())) == {"empty"}
    assert audit([lucky], tasks(), tolerance=0.4).passed


def test_no_attempt_that_is_called_wrong_holds_only_the_right_answer():
    for answer in ("1", "8", "1.0", "True", "B"):
        task = Task("row", None, (), "Is it 8 or 1?", (), {"answer": answer})
        assert all(a.text != answer for a in attempts(task, answer, ["A", "B"]) if a.role == "non-answer")


@pytest.mark.parametrize(
    ("some", "options", "message"),
    [
        ([], {}, "there are no tasks"),
        (tasks(), {"answer_column": "gold"}, "row 0 has no column gold with a right answer; name one with"),
        (tasks((" ",)), {}, "row 0: the right answer in column answer is empty"),
        (tasks((None,)), {}, "row 0: the right answer in column answer is empty"),
        (tasks(), {"tolerance": 1.0}, "--tolerance 1.0: must be"),
        (tasks(), {"max_tasks": 0}, "--tasks 0: must be at least 1"),
    ],
)
def test_what_cannot_be_audited_is_refused(some, options, message):
    with pytest.raises(InputError, match=message):
        audit([reward(lambda text, answer: 1.0)], some, **options)


def test_the_command_prints_tables_or_json_and_its_status_tells(tmp_path, capsys):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n}+{n}=\x1b[2J", "answer": 2 * n}) + "\n" for n in range(5, 25)))
    words = ["audit", "--data", str(path), "--reward", "numeric", "--tasks", "5"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "right answer among others" in out and "no non-answer gets what a right answer gets" in out
    assert "\x1b[2J" not in out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert main(["audit", "--data", str(path), "--reward", "format"]) == 1
    assert "FAIL wrong answer, right form: gets the score of a right answer at 100% of" in capsys.readouterr().out
    assert main(["audit", "--data", str(path)]) == 2
    assert "--reward is missing" in capsys.readouterr().err
