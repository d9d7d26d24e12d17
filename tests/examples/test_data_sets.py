"""The data sets that ship: their scripts make them, their answers are right, and their configurations can be read."""

import importlib.util
import json
import sqlite3
from pathlib import Path

import pytest

from grpo.config import TrainConfig
from grpo.data.load import DataConfig, load_data, loose_key
from grpo.data.loaders import Problem
from grpo.groups import Completion, Task
from grpo.options import read_options
from grpo.rewards import find_rewards, score

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("code", "sql", "two_digit_addition", "word_problems")


def script(name: str):
    spec = importlib.util.spec_from_file_location(f"make_{name}", EXAMPLES / name / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(name: str, file: str) -> list[dict]:
    return [json.loads(line) for line in (EXAMPLES / name / file).read_text(encoding="utf-8").splitlines()]


def rewards_of(reward: str, problems: list[Problem], texts: list[str]) -> list[tuple[float | None, ...]]:
    judges = find_rewards([reward])
    rules = tuple(judge.rule for judge in judges)
    tasks = [Task(p.where, None, rules, p.prompt, (0,), p.columns) for p in problems]
    return score(judges, [Completion(t, (0,), text, False) for t, text in zip(tasks, texts, strict=True)])


def problems_of(name: str) -> list[Problem]:
    data = load_data(
        DataConfig(data=str(EXAMPLES / name / "train.jsonl"), eval_data=str(EXAMPLES / name / "eval.jsonl"))
    )
    return data.train + data.held_out


@pytest.mark.parametrize("name", NAMES)
def test_the_script_makes_the_files_that_are_here(name, tmp_path, capsys):
    script(name).main(tmp_path)
    for file in ("train.jsonl", "eval.jsonl"):
        assert (tmp_path / file).read_bytes() == (EXAMPLES / name / file).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_is_there_once_and_held_out_ones_are_not_trained_on(name):
    prompts = [loose_key(row["prompt"]) for file in ("train.jsonl", "eval.jsonl") for row in rows(name, file)]
    assert len(prompts) == len(set(prompts)) >= 200


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_names_files_that_exist(name, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    config = TrainConfig(**read_options(EXAMPLES / name / "train.yaml", TrainConfig))
    assert Path(config.data).is_file() and Path(config.eval_data).is_file()
    assert config.reference_column is None or all(config.reference_column in row for row in rows(name, "train.jsonl"))


def test_answers_of_word_problems_get_the_full_reward_and_numbers_of_the_text_none():
    problems = problems_of("word_problems")
    answers = [p.columns["answer"] for p in problems]
    assert rewards_of("numeric", problems, answers) == [(1.0,)] * len(problems)
    echoes = [p.prompt[-1]["content"] for p in problems]
    assert rewards_of("numeric", problems, echoes) == [(0.0,)] * len(problems)


def test_queries_give_something_and_ordered_ones_have_no_ties():
    for row in rows("sql", "train.jsonl") + rows("sql", "eval.jsonl"):
        connection = sqlite3.connect(":memory:")
        connection.executescript(row["database"])
        result = connection.execute(row["answer"]).fetchall()
        connection.close()
        assert result not in ([], [(0,)], [(None,)]), row["answer"]
        if "ORDER BY" in row["answer"]:
            assert len(set(result)) == len(result)


def test_solutions_of_code_tasks_pass_their_tests():
    for row in rows("code", "train.jsonl") + rows("code", "eval.jsonl"):
        exec("\n".join([row["solution"], *row["tests"]]), {})


def test_solutions_of_code_tasks_get_the_full_reward_and_empty_functions_none():
    problems = problems_of("code")[::10]
    solutions = [f"```python\n{p.columns['solution']}\n```" for p in problems]
    assert rewards_of("code", problems, solutions) == [(1.0,)] * len(problems)
    assert rewards_of("code", problems, ["def solve(*_): pass"] * len(problems)) == [(0.0,)] * len(problems)


def test_queries_get_the_full_reward_and_empty_results_none():
    problems = problems_of("sql")
    answers = [p.columns["answer"] for p in problems]
    assert rewards_of("sql", problems, [f"```sql\n{answer}\n```" for answer in answers]) == [(1.0,)] * len(problems)
    assert rewards_of("sql", problems, ["SELECT NULL WHERE 0"] * len(problems)) == [(0.0,)] * len(problems)
