"""Whatever bytes a model writes, every reward answers with a number or None, in bounded time."""

import math
import random
import time

import pytest

from grpo.groups import Completion
from grpo.rewards import REWARDS, RewardRunner, find_rewards
from grpo.rewards.composite import Composite, Part
from grpo.rewards.gym import gym_rows
from grpo.rewards.reward import Reward
from tests.grpo.conftest import task

PIECES = [
    "<answer>", "</answer>", "<think>", "</think>", "\\boxed{", "{", "}", "$", "####", "```python\n", "```sql\n",
    "```json\n", "```", "\x00", "\ud800", "\u202e", "\u200b", "\x1b[2J", "\r\n", "９", "٣", "½", "∞", "-", "(", ")",
    "9**9**9", "1e999", "NaN", "\\frac", "^", "_", "\\text{", "%", "or", "SELECT", "DROP TABLE t;", "ATTACH 'x'",
    "import os", "while True: pass", "[[[[", '{"a":', "null", "A", "B", "🙂", "\U0010ffff", "Answer: ",
]  # fmt: skip
LONG = [
    "", " ", "\x00" * 1000, "(" * 10**6, "<answer>" * 10**5, "\\boxed{" * 10**5, "9" * 10**6, "{" * 10**6, "[" * 10**5,
    "<answer>" + "9" * 10**5 + "</answer>", "\\boxed{" + "9" * 10**5 + "}", "a " * 10**6, "\n" * 10**6,
    "\ud800" * 10**5, "```json\n" + "[" * 10**5 + "\n```", "```sql\nSELECT " + "(" * 10**4 + "\n```", "$" * 10**5,
    "1/" * 10**5, "1," * 10**5, "\\frac" * 10**5, "-" * 10**6, "%" * 10**5, "\\text{a}" * 10**4, "#### " * 10**5,
    "\u200b" * 10**5, "```" + "a" * 10**5 + "`", "```" + " " * 10**5 + "`", '{"a":' * 10**4, "answer is " * 10**5,
    "<think>" * 10**5, '{"a":[' + "{}," * 10**4 + "{}]}", "\x1b[31m" * 10**4, "🙂" * 10**5,
]  # fmt: skip

POLICY = "- {name: a, pattern: '(?i)drop table', score: -1}\n- {name: b, pattern: '[(]{3}', score: -0.5}\n"
SCHEMA = {"type": "object", "properties": {"a": {"type": ["integer", "null"], "multipleOf": 0.1}}, "uniqueItems": True}
COMPOSITE = Reward(
    "composite", 1, Composite([Part("a", REWARDS["numeric"], 1.0, None), Part("b", REWARDS["format"], 0.5, "answered")])
)
NAMES = sorted([*REWARDS, "composite"])


@pytest.fixture(scope="module")
def rewards(tmp_path_factory) -> dict[str, Reward]:
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    policy.write_text(POLICY)
    (safety,) = find_rewards([f"safety:policy={policy}"])
    sections, code = find_rewards(["format:sections=think answer", "code:timeout_s=1"])
    return {**REWARDS, "safety": safety, "format": sections, "code": code, "composite": COMPOSITE}


@pytest.fixture(scope="module")
def columns() -> dict[str, dict]:
    """What each reward needs in a row."""
    (gym,) = gym_rows("spell_backward:size=1")
    return {
        "numeric": {"answer": "3"},
        "composite": {"answer": "3"},
        "math": {"answer": "\\frac{1}{2}"},
        "code": {"tests": ["assert f(1) == 1"]},
        "sql": {"answer": "SELECT a FROM t", "database": "CREATE TABLE t (a); INSERT INTO t VALUES (1)"},
        "choice": {"answer": "B", "choices": ["x", "9", "null"]},
        "json": {"schema": SCHEMA},
        "gym": gym,
    }


def judge(reward: Reward, texts: list[str], columns: dict) -> None:
    of = task()
    of.columns.clear()
    of.columns.update(columns)
    ids = [tuple(map(ord, text[:2000])) for text in texts]
    scores = RewardRunner([reward], "stop").score(
        [Completion(of, own, text, False) for own, text in zip(ids, texts, strict=True)]
    )
    assert len(scores.rows) == len(texts)
    for (value,), parts in zip(scores.rows, scores.parts, strict=True):
        assert all(one is None or math.isfinite(one) for one in (value, *parts.values()))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_long_texts_are_judged_in_bounded_time(name, rewards, columns):
    started = time.monotonic()
    judge(rewards[name], LONG, columns.get(name, {}))
    assert time.monotonic() - started < 60


def hostile_texts(count: int) -> list[str]:
    """Different ones: pieces, any characters, and bytes that need not be UTF-8."""
    source = random.Random(0)

    def piece() -> str:
        kind, length = source.random(), source.randrange(8)
        if kind < 0.6:
            return source.choice(PIECES)
        if kind < 0.8:
            return "".join(chr(source.randrange(source.choice((128, 0x110000)))) for _ in range(length))
        return source.randbytes(length).decode("utf-8", "surrogateescape")

    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(piece() for _ in range(source.randrange(12)))] = None
    return list(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ten_thousand_hostile_texts(name, rewards, columns):
    judge(rewards[name], hostile_texts(10_000), columns.get(name, {}))
