"""What the last pair of answer tags holds."""

import time

import pytest

from grpo.rewards.answer import last_tagged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("<answer>", None),
        ("</answer>x<answer>", None),
        ("<answer></answer>", ""),
        ("<answer>1</answer>", "1"),
        ("<answer>1</answer><answer>2</answer>", "2"),
        ("<answer>1</answer><answer>2", "1"),
        ("<answer>1<answer>2</answer>", "1<answer>2"),
        ("<answer>1</answer>2</answer>", "1"),
        ("<answer>\n1\n</answer>", "\n1\n"),
        ("<ANSWER>1</ANSWER>", None),
    ],
)
def test_the_last_pair(text, expected):
    assert last_tagged(text) == expected


@pytest.mark.parametrize("text", ["<answer>" * 200_000, "<answer></answer>" * 100_000, "</answer>" * 200_000])
def test_it_takes_linear_time(text):
    started = time.perf_counter()
    last_tagged(text)
    assert time.perf_counter() - started < 1
