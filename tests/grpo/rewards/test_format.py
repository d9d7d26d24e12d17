"""Exactly one answer, at the end."""

import pytest

from grpo.rewards.format import format_reward


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<answer>4</answer>", 1.0),
        ("2+2 is\n<answer> 4 </answer>\n", 1.0),
        ("4", 0.0),
        ("<answer></answer>", 0.0),
        ("<answer> </answer>", 0.0),
        ("<answer>4</answer> or so", 0.0),
        ("<answer>4", 0.0),
        ("</answer>4<answer>", 0.0),
        ("<answer>4</answer><answer>4</answer>", 0.0),
        ("<answer><answer>4</answer>", 0.0),
    ],
)
def test_form(completion, reward):
    assert format_reward(completions=[completion]) == [reward]
