"""What `grpo data` shows is what the model gets, and nothing in it can steer a terminal."""

import json

from grpo.cli import main
from grpo.data.loaders import Problem
from grpo.data.preview import length_lines, preview, preview_lines
from tests.grpo.conftest import BOS, TEMPLATE, character_tokenizer


def chat_tokenizer():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_special_tokens_line_breaks_and_ids_are_shown():
    shown = preview(Problem("row 1", [{"role": "user", "content": "1+2"}], {"answer": 3}), chat_tokenizer())
    assert shown.text == "<bos>u1+2\na"
    assert shown.ids[0] == BOS
    assert preview_lines(shown) == [
        "row 1: 7 tokens",
        "  | <bos>u1+2",
        "  | a",
        "  tokens: <bos>:2 u:36 1:4 +:13 2:5 \\n:48 a:16",
        "  answer = 3",
    ]


def test_untrusted_text_is_escaped():
    problem = Problem("row 1", "1", {"an\x1bswer": "\x1b[2J\u202e[red]x[/red]"})
    text = "\n".join(preview_lines(preview(problem, character_tokenizer())))
    assert "\x1b" not in text and "\u202e" not in text
    assert "[red]x[/red]" in text


def test_lengths_are_summed_up():
    lines = length_lines([2, 3, 3, 3, 17])
    assert lines[0] == "prompt tokens: shortest 2, median 3, 90 % up to 11.4, longest 17"
    assert [line.split()[-1] for line in lines[1:]] == ["4", "0", "0", "0", "0", "0", "0", "1"]
    assert lines[1].startswith("   2-3  " + "#" * 40)
    assert length_lines([5])[1:] == ["  5-5 " + "#" * 40 + " 1"]


def test_the_command_shows_rows_and_what_the_rewards_read(model_folder, data_file, capsys):
    words = ["data", "--model", str(model_folder), "--data", str(data_file), "--rows", "1", "--reward", "numeric"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "training data: 30 rows" in out
    assert "prompt tokens: shortest 4, median 4" in out
    assert "reward numeric has its columns: answer" in out
    assert out.count("tokens: ") == 2 and "  answer = " in out


def test_a_missing_column_is_one_line_and_status_2(model_folder, tmp_path, capsys):
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(3)))
    words = ["data", "--model", str(model_folder), "--data", str(tmp_path / "d.jsonl"), "--reward", "numeric"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "has no column 'answer', which reward numeric needs; it has: prompt" in error
