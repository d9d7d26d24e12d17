"""From options to the problems of a run, and what the report says happened on the way."""

import json

import pytest

from grpo.data.columns import as_messages, fill, parse_template
from grpo.data.load import DataConfig, load_data, make_data
from grpo.errors import InputError
from tests.grpo.conftest import character_tokenizer


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def math(tmp_path):
    rows = [{"id": n, "question": f"{n}+1?", "solution": str(n + 1)} for n in range(20)]
    return write(tmp_path / "math.jsonl", rows)


def test_columns_get_the_names_that_rewards_know(math):
    data = load_data(DataConfig(data=math, prompt_column="question", columns=("answer=solution",), eval_size=2))
    problem = next(p for p in data.train + data.held_out if p.columns["id"] == 4)
    assert (problem.prompt, problem.columns) == ("4+1?", {"id": 4, "answer": "5"})


def test_a_template_is_filled_from_columns(math):
    data = load_data(DataConfig(data=math, prompt_template="{{Q}} {question}\nA{id}:", eval_size=1))
    problem = next(p for p in data.train + data.held_out if p.columns["id"] == 4)
    assert problem.prompt == "{Q} 4+1?\nA4:"
    assert problem.columns == {"id": 4, "question": "4+1?", "solution": "5"}


def test_what_a_template_puts_in_is_not_a_template():
    assert fill(parse_template("{a}{b}"), {"a": "{b}", "b": "x"}, "row 1") == "{b}x"


@pytest.mark.parametrize("template", ["{", "}", "no column", "{}", "{0.real}", "{a[b]}", "{a!r}", "{a:>9}"])
def test_a_template_is_text_and_names_of_columns(template):
    with pytest.raises(InputError, match="--prompt-template"):
        DataConfig(prompt_template=template)


def test_a_system_prompt_is_there_once():
    chat = [{"role": "system", "content": "old"}, {"role": "user", "content": "hi"}]
    new = [{"role": "system", "content": "new"}, {"role": "user", "content": "hi"}]
    assert as_messages("hi") == [{"role": "user", "content": "hi"}]
    assert as_messages(chat) == chat
    assert as_messages("hi", "new") == as_messages(chat, "new") == as_messages(new, "new") == new


def test_a_system_prompt_makes_a_chat_of_text(math):
    config = DataConfig(data=math, prompt_column="question", system_prompt="Add.", eval_size=1)
    prompt = load_data(config).train[0].prompt
    assert [message["role"] for message in prompt] == ["system", "user"]


def test_repeated_rows_are_kept_once_and_counted(tmp_path):
    rows = [{"prompt": str(n), "answer": n} for n in range(10)]
    path = write(tmp_path / "d.jsonl", [*rows, rows[3], rows[3], {"prompt": "4", "answer": 5}])
    data = load_data(DataConfig(data=path, eval_size=2))
    assert len(data.train) + len(data.held_out) == 11
    assert data.report[0] == (
        "training data: 13 rows; 2 of them repeat another and are dropped; prompts with several sets of columns: 1"
    )


def test_overlap_of_training_and_held_out_prompts_is_counted(tmp_path):
    train = write(tmp_path / "train.jsonl", [{"prompt": "What is  2+2?"}, {"prompt": "3"}])
    held_out = write(tmp_path / "eval.jsonl", [{"prompt": "what is 2+2?\n"}, {"prompt": "5"}])
    data = load_data(DataConfig(data=train, eval_data=held_out))
    assert data.report[-1] == "1 held-out prompts are also trained on, not counting case and space"


def test_prompts_over_the_limit_are_dropped_and_counted(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"prompt": "1" * n} for n in range(1, 11)])
    data = load_data(DataConfig(data=path, max_prompt_length=6, eval_size=1), character_tokenizer())
    assert {len(p.prompt) for p in data.train + data.held_out} == set(range(1, 7))
    assert data.report[0] == "training data: 10 rows; 4 dropped as longer than 6 tokens"


def test_a_limit_that_drops_everything_is_refused_with_the_lengths(tmp_path):
    path = write(tmp_path / "d.jsonl", [{"prompt": "11"}, {"prompt": "1111"}])
    with pytest.raises(
        InputError, match="--max-prompt-length 1 drops every prompt of the training data: the shortest has 2 tokens"
    ):
        load_data(DataConfig(data=path, max_prompt_length=1), character_tokenizer())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has no column 'prompt'; it has: id, question, solution; name the prompt's column with --prompt-column"),
        ({"prompt_template": "{problem}"}, "line 1 has no column 'problem', which --prompt-template names"),
        ({"prompt_column": "question", "columns": ("answer=gold",)}, "has no column 'gold', which --columns"),
        ({"prompt_column": "id"}, "line 1: prompt must be text"),
        ({"columns": ("answer",)}, "--columns answer: must be NAME=COLUMN"),
        ({"columns": ("a=b", "a=c")}, "a is b already"),
        ({"columns": ("prompt=question",)}, "named by --prompt-column"),
        ({"prompt_column": "question", "prompt_template": "{id}"}, "give one of them"),
        ({"eval_size": 0}, "--eval-size 0: must be at least 1"),
        ({"max_prompt_length": 0}, "--max-prompt-length 0: must be at least 1"),
        ({"eval_size": 1, "eval_data": "x"}, "give one of them"),
    ],
)
def test_options_that_do_not_fit_the_data_are_refused(math, options, message):
    with pytest.raises(InputError, match=message):
        load_data(DataConfig(data=math, **options))


def test_rows_in_memory_are_treated_like_rows_of_a_file():
    rows = [("r 1", {"q": "1"}), ("r 2", {"q": "1"}), ("r 3", {"q": "22"})]
    data = make_data(rows, rows[2:], DataConfig(prompt_column="q", max_prompt_length=2), character_tokenizer())
    assert [p.where for p in data.train] == ["r 1", "r 3"]
    assert data.report[-1].startswith("1 held-out prompts are also trained on")


def test_the_source_must_be_named():
    with pytest.raises(InputError, match="--data is missing"):
        load_data(DataConfig())
