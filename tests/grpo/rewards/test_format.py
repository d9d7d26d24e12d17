"""A completion's form: its only answer at the end, or the sections that are asked for and nothing else."""

import time

import pytest

from grpo.errors import InputError
from grpo.rewards.format import format_reward

# Without `sections`: what comes before the answer is free.
ENDS_WITH_ANSWER = [
    ("<answer>5</answer>", 1),
    ("thinking ... <answer>5</answer>\n", 1),
    ("<think>x</think><answer>5</answer>", 1),
    ("a < b and <answer>5</answer>", 1),
    ("<answer>\n\n5\n</answer>", 1),
    ("", 0),
    ("5", 0),
    ("<answer>5", 0),
    ("5</answer>", 0),
    ("</answer>5<answer>", 0),
    ("<answer></answer>", 0),
    ("<answer>   </answer>", 0),
    ("<answer>\u200b</answer>", 0),
    ("<answer>\u00ad\ufeff</answer>", 0),
    ("<answer>5</answer> and more", 0),
    ("<answer>5</answer><answer>5</answer>", 0),
    ("<answer>4</answer> no, <answer>5</answer>", 0),
    ("<answer><answer>5</answer></answer>", 0),
    ("<ANSWER>5</ANSWER>", 0),
    ("<answer >5</answer>", 0),
    ("<answer>5</answer >", 0),
    ("<answer>5<\u200b/answer>", 0),
    ("&lt;answer&gt;5&lt;/answer&gt;", 0),
    ("＜answer＞5＜/answer＞", 0),
]
THINK_ANSWER = [
    ("<think>a</think><answer>b</answer>", 1),
    ("<think>a</think>\n\n<answer>b</answer>", 1),
    ("  <think>a</think> <answer>b</answer>\n", 1),
    ("<think>a <b> c</think><answer>1 < 2</answer>", 1),
    ("<think>\na\n</think><answer>\nb\n</answer>", 1),
    ("<think>the sections are think and answer</think><answer>b</answer>", 1),
    ("", 0),
    ("<answer>b</answer>", 0),
    ("<think>a</think>", 0),
    ("<answer>b</answer><think>a</think>", 0),
    ("<think>a<answer>b</answer></think>", 0),
    ("<think>a<answer>b</think></answer>", 0),
    ("<think>a</think><answer>b", 0),
    ("<think>a<answer>b</answer>", 0),
    ("a</think><answer>b</answer>", 0),
    ("<think></think><answer>b</answer>", 0),
    ("<think>a</think><answer></answer>", 0),
    ("<think>\n</think><answer>b</answer>", 0),
    ("<think>\u200b</think><answer>b</answer>", 0),
    ("x<think>a</think><answer>b</answer>", 0),
    ("<think>a</think>x<answer>b</answer>", 0),
    ("<think>a</think><answer>b</answer>x", 0),
    ("<think>a</think>\u200b<answer>b</answer>", 0),
    ("<think>a</think><think>a</think><answer>b</answer>", 0),
    ("<think>a</think><answer>b</answer><answer>b</answer>", 0),
    ("<think>a</think><answer>b</answer>" * 2, 0),
    ("<think>I must write <answer>b</answer> now</think><answer>b</answer>", 0),
    ("<think>end with </think> then</think><answer>b</answer>", 0),
    ("<Think>a</Think><Answer>b</Answer>", 0),
    ("<think id=1>a</think><answer>b</answer>", 0),
    ("<think >a</think><answer>b</answer>", 0),
    ("<think/>a<think/><answer>b</answer>", 0),
    ("< think>a</think><answer>b</answer>", 0),
    ("<think>a<\\think><answer>b</answer>", 0),
    ("<tHink>a</think><answer>b</answer>", 0),
    ("<thınk>a</thınk><answer>b</answer>", 0),
    ("[think]a[/think][answer]b[/answer]", 0),
    ("<!-- <think>a</think><answer>b</answer> -->", 0),
    ("```\n<think>a</think><answer>b</answer>\n```", 0),
    ("<think>a</think>\n<answer>b</answer>\n\x1b[0m", 0),
]


@pytest.mark.parametrize(("completion", "expected"), ENDS_WITH_ANSWER)
def test_it_ends_with_its_only_answer(completion, expected):
    assert format_reward(completions=[completion]) == [expected]


@pytest.mark.parametrize(("completion", "expected"), THINK_ANSWER)
def test_sections_in_order_once_and_nothing_outside(completion, expected):
    assert format_reward(completions=[completion], sections="think answer") == [expected]


def test_other_tags_are_content():
    text = "<plan><answer>x</answer></plan>"
    assert format_reward(completions=[text], sections="plan") == [1.0]
    assert format_reward(completions=[text], sections="plan answer") == [0.0]


@pytest.mark.parametrize("sections", ["a a", "a <b>", "a b/", ".*"])
def test_names_that_are_none_are_refused(sections):
    with pytest.raises(InputError, match="sections is"):
        format_reward(completions=["x"], sections=sections)


@pytest.mark.parametrize("text", ["<answer>" * 100_000, "<" * 10**6, "</answer>" * 100_000, "<answer>" + " " * 10**6])
def test_long_texts_take_linear_time(text):
    started = time.perf_counter()
    assert format_reward(completions=[text]) == format_reward(completions=[text], sections="think answer") == [0.0]
    assert time.perf_counter() - started < 2
