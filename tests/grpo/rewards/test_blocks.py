"""Which part of a completion is its code."""

import pytest

from grpo.rewards.blocks import last_block


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("x", "x"),
        ("", ""),
        ("```python\nx\n```\n```\ny\n```", "x\n"),
        ("```\nx\n```\n```\ny\n```", "y\n"),
        ("```python\nx\n```\n```py\ny\n```", "y\n"),
        ("```python\n```", ""),
        ("```python\nx", "x"),
        ("  ```Python title\r\nx\r\n  ```", "x\r\n"),
        ("`x` ```x```", "`x` ```x```"),
        ("```sql\nx\n```", "```sql\nx\n```"),
        ("<answer>x</answer>", "x"),
        ("```python\ny\n```<answer>\n```python\nx\n```\n</answer>", "x\n"),
        ("<answer>y</answer><answer>x</answer> <answer>", "x"),
        ("</answer>x<answer>", "</answer>x<answer>"),
    ],
)
def test_the_last_block_of_the_language_else_of_none_else_all(text, block):
    assert last_block(text, ("python", "py")) == block
