"""What is sampled is judged meanwhile, and every completion keeps its own verdict."""

import threading

import pytest

from grpo.groups import Completion
from grpo.rewards import Reward, RewardRunner
from grpo.verification import Verification
from tests.grpo.conftest import task


def group(*texts: str) -> list[Completion]:
    return [Completion(task(), (5,), text, False) for text in texts]


def number(completions, **_) -> list[float | None]:
    return [float(text) for text in completions]


def test_completions_are_judged_while_others_are_sampled():
    begun = threading.Event()

    def judge(completions, **_):
        begun.set()
        return number(completions)

    with Verification(RewardRunner([Reward("mine", 1, judge, beside_sampling=True)])) as verification:
        verification.add(group("1", "2"))
        assert begun.wait(10)
        verification.add(group("3"))
        assert verification.finish().rows == [(1.0,), (2.0,), (3.0,)]
    assert [c.text for c in verification.completions] == ["1", "2", "3"]


def test_what_comes_meanwhile_is_judged_at_once():
    go_on, batches = threading.Event(), []

    def judge(completions, **_):
        batches.append(len(completions))
        go_on.wait(10)
        return number(completions)

    with Verification(RewardRunner([Reward("mine", 1, judge, beside_sampling=True)])) as verification:
        for text in "12345":
            verification.add(group(text))
        go_on.set()
        assert verification.finish().rows == [(float(n),) for n in range(1, 6)]
    assert batches == [1, 4]


def test_a_function_of_ones_own_sees_the_whole_batch_in_the_thread_that_samples():
    calls = []

    def judge(completions, **_):
        calls.append((threading.get_ident(), len(completions)))
        return number(completions)

    own, built_in = Reward("mine", 1, judge), Reward("other", 1, number, beside_sampling=True)
    with Verification(RewardRunner([built_in, own])) as verification:
        verification.add(group("1"))
        verification.add(group("2"))
        assert calls == []
        verification.finish()
    assert calls == [(threading.get_ident(), 2)]


def test_what_a_reward_raises_reaches_the_run():
    def judge(**_):
        raise RuntimeError("lost")

    runner = RewardRunner([Reward("mine", 1, judge, beside_sampling=True)], on_error="stop")
    with Verification(runner) as verification:
        verification.add(group("1"))
        with pytest.raises(Exception, match="mine failed: RuntimeError: lost"):
            verification.finish()
