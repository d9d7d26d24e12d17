"""JSONL files: what is read, what is refused, and what is held out."""

import json

import pytest

from grpo.data.loaders import hold_out, problems_from_rows, read_problems, require_columns
from grpo.errors import InputError


def write(tmp_path, text: str):
    path = tmp_path / "data.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_rows_are_read_with_their_columns_and_places(tmp_path):
    path = write(
        tmp_path, '\ufeff{"prompt": "1+1=", "answer": 2}\n\n{"prompt": [{"role": "user", "content": "x\u2028y"}]}\n'
    )
    first, second = read_problems(path)
    assert (first.prompt, first.columns, first.where) == ("1+1=", {"answer": 2}, f"{path} line 1")
    assert (second.prompt[0]["content"], second.where) == ("x\u2028y", f"{path} line 3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ('{"prompt": "a"}\n{"prompt": ', "line 2 is not valid JSON"),
        ('{"prompt": "a"}\n["b"]', "line 2 is not a JSON object"),
        ('{"question": "a", "answer": 1}', "line 1 has no column 'prompt'; it has: question, answer"),
        ('{"prompt": 5}', "line 1: prompt must be text, or a list"),
        ('{"prompt": [{"role": "user"}]}', "line 1: prompt must be text, or a list"),
        ('{"prompt": ""}', "line 1: prompt is empty"),
        ('{"prompt": []}', "line 1: prompt is empty"),
        ('{"prompt": "a\\ud800"}', "line 1: prompt has half of a surrogate pair"),
        ('{"prompt": "a", "completions": 1}', "line 1 has a column 'completions'"),
        ("[" * 100_000, "line 1 is not valid JSON"),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path, text, message):
    with pytest.raises(InputError) as error:
        read_problems(write(tmp_path, text))
    assert message in str(error.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_problems(tmp_path / "nothing.jsonl")
    with pytest.raises(InputError, match="is a folder"):
        read_problems(tmp_path)
    (tmp_path / "latin").write_bytes(b'{"prompt": "caf\xe9"}')
    with pytest.raises(InputError, match="not UTF-8"):
        read_problems(tmp_path / "latin")


def test_a_missing_column_is_refused_with_the_columns_there_are():
    problems = problems_from_rows([{"prompt": "a", "answer": 1}, {"prompt": "b", "gold": 1}], "data")
    with pytest.raises(
        InputError, match="data row 2 has no column 'answer', which reward x needs; it has: prompt, gold"
    ):
        require_columns(problems, ["answer"], "reward x")


def test_held_out_problems_are_not_trained_on():
    problems = problems_from_rows([{"prompt": str(n)} for n in range(40)], "data")
    train, held_out = hold_out(problems, None, seed=0)
    assert len(held_out) == 4
    assert sorted(p.where for p in train + held_out) == sorted(p.where for p in problems)
    assert hold_out(problems, None, seed=0) == (train, held_out)
    assert hold_out(problems, None, seed=1) != (train, held_out)


def test_rows_with_the_same_prompt_stay_on_one_side():
    rows = [{"prompt": [{"role": "user", "content": str(n % 5)}], "answer": n} for n in range(20)]
    train, held_out = hold_out(problems_from_rows(rows, "data"), 3, seed=0)
    assert len(held_out) == 4
    assert not {json.dumps(p.prompt) for p in train} & {json.dumps(p.prompt) for p in held_out}


@pytest.mark.parametrize(("rows", "size"), [(1, None), (5, 5), (5, 9)])
def test_too_few_rows_to_hold_some_out_are_refused(rows, size):
    problems = problems_from_rows([{"prompt": str(n)} for n in range(rows)], "data")
    with pytest.raises(InputError, match="add rows, lower --eval-size, or give --eval-data"):
        hold_out(problems, size, seed=0)
