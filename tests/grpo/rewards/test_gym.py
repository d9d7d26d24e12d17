"""Tasks of reasoning-gym: their questions, their own scoring, and no answer that runs as code."""

import ast
from decimal import Decimal

import pytest

from grpo.cli import main
from grpo.data.sources import read_rows
from grpo.errors import InputError
from grpo.rewards.gym import gym_reward


def judge(row: dict, *completions: str) -> list[float | None]:
    count = len(completions)
    return gym_reward(
        completions=list(completions),
        gym_task=[row["gym_task"]] * count,
        gym_entry=[row["gym_entry"]] * count,
        workers=1,
    )


def rows(spec: str) -> list[dict]:
    return [row for _, row in read_rows(spec)]


def entry(row: dict) -> dict:
    return ast.literal_eval(row["gym_entry"])["entry"]


@pytest.mark.parametrize("task", ["chain_sum", "spell_backward", "arc_agi", "knights_knaves"])
def test_the_tasks_own_answers_are_right(task):
    for row in rows(f"gym:{task}:size=3"):
        right, wrong, marked = judge(row, row["answer"], "no idea", f"So: <answer>{row['answer']}</answer>")
        assert right == marked == 1.0
        assert wrong < 1.0


def test_the_seed_decides_the_questions():
    assert rows("gym:chain_sum:size=4,seed=1") == rows("gym:chain_sum:size=4,seed=1")
    train, held_out = ({row["prompt"] for row in rows(f"gym:basic_arithmetic:size=20,seed={seed}")} for seed in (1, 2))
    assert len(train) == 20 and not train & held_out


def test_options_are_the_tasks_own():
    (row,) = rows("gym:chain_sum:size=1,min_terms=2,max_terms=2")
    assert entry(row)["metadata"]["num_terms"] == 2


def test_a_task_scores_with_its_options():
    """Here an error of one in the last decimal place is none, and the options say how many there are."""
    (row,) = rows("gym:decimal_arithmetic:size=1,max_num_decimal_places=6")
    near = Decimal(row["answer"]) + Decimal("0.0001")
    assert judge(row, row["answer"], str(near)) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gym:nothing", "reasoning-gym refuses this: Dataset 'nothing' not registered"),
        ("gym:chain_sum:foo=1", "unexpected keyword argument 'foo'"),
        ("gym:chain_sum:size", "'size' is no option=value"),
    ],
)
def test_what_the_gym_does_not_have_is_said(spec, message):
    with pytest.raises(InputError, match=message):
        read_rows(spec)


ATTACKS = [
    "open({path!r}, 'w').write('x')",
    "exec(\"open({path!r}, 'w').write('x')\")",
    "__import__('pathlib').Path({path!r}).touch()",
    "S(\"open({path!r}, 'w')\")",
    "sympify(\"open({path!r}, 'w')\")",
    "[c for c in ().__class__.__base__.__subclasses__()] and open({path!r}, 'w')",
    "(lambda: open({path!r}, 'w'))()",
    "Symbol.mro()[-1]",
]


@pytest.mark.parametrize("task", ["countdown", "puzzle24", "polynomial_multiplication", "n_queens", "binary_matrix"])
def test_an_answer_is_never_run_as_code(task, tmp_path):
    """These tasks evaluate answers by `eval` or sympy's parser."""
    (row,) = rows(f"gym:{task}:size=1")
    path = tmp_path / "written"
    for verdict in judge(row, *(attack.format(path=str(path)) for attack in ATTACKS)):
        assert verdict is None or verdict < 1.0
    assert not path.exists()


def test_arithmetic_answers_are_still_read():
    (row,) = rows("gym:countdown:size=1")
    (right,) = judge(row, entry(row)["metadata"]["expression"])
    assert right == 1.0
    (row,) = rows("gym:polynomial_multiplication:size=1")
    assert judge(row, row["answer"], f"({row['answer']}) + 1 - 1", "x") == [1.0, 1.0, 0.0]


def test_the_preview_shows_them(model_folder, capsys):
    assert main(["data", "--data", "gym:spell_backward:size=2", "--reward", "gym", "--model", str(model_folder)]) == 0
    assert "gym:spell_backward:size=2 row 1" in capsys.readouterr().out
