"""Rewards by name, and what is refused of what they return."""

import math

import pytest

from grpo.errors import InputError
from grpo.groups import Completion
from grpo.rewards import Reward, find_rewards, score
from tests.grpo.conftest import task


def completions(*texts: str) -> list[Completion]:
    return [Completion(task(f"q{n}"), (5,), text, truncated=False) for n, text in enumerate(texts)]


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(InputError, match="--reward nope.*choose from choice, code, format, .*numeric, .*sql"):
        find_rewards(["numeric", "nope"])


def test_columns_that_a_reward_needs_are_read_from_its_signature():
    assert [reward.columns for reward in find_rewards(["numeric", "format"])] == [["answer"], []]


@pytest.mark.parametrize("spec", ["format:sections=a a", "length:ramp=0", "repetition:n=0", "safety"])
def test_options_that_are_wrong_are_said_before_anything_is_judged(spec):
    with pytest.raises(InputError, match=f"reward {spec.partition(':')[0]}"):
        find_rewards([spec])


def test_rewards_see_prompts_texts_ids_and_columns():
    seen = {}

    def spy(prompts, completions, completion_ids, **columns):
        seen.update(prompts=prompts, completions=completions, ids=completion_ids, **columns)
        return [1, None]

    assert score([Reward("spy", 1, spy)], completions("a", "b")) == [(1.0,), (None,)]
    assert seen == {
        "prompts": ["1+2="] * 2, "completions": ["a", "b"], "ids": [[5], [5]], "answer": ["3", "3"],
    }  # fmt: skip


@pytest.mark.parametrize("bad", [math.nan, math.inf, "1", [1.0]])
def test_a_reward_that_is_not_a_finite_number_is_refused_by_function_and_sample(bad):
    with pytest.raises(InputError, match=r"reward broken returned .* for sample 1 \(q1\)"):
        score([Reward("broken", 1, lambda **_: [0.0, bad])], completions("a", "b"))


@pytest.mark.parametrize("bad", [[1.0], [1.0] * 3, None, (1.0, 1.0)])
def test_a_wrong_count_is_refused_by_function(bad):
    with pytest.raises(InputError, match="reward broken returned .* for 2 completions"):
        score([Reward("broken", 1, lambda **_: bad)], completions("a", "b"))
