"""A function of the user's own that hangs costs its samples alone, and does not go on running."""

import asyncio
import threading
import time

import psutil
import pytest

from grpo.groups import Completion
from grpo.rewards import Reward, RewardRunner, find_rewards
from tests.grpo.conftest import task

SOURCE = """
import time

def judge(completions, answer, **_):
    for text in completions:
        if text == "loop":
            while True:
                pass
        if text == "sleep":
            time.sleep(60)
        if text == "raise":
            raise KeyError("lost")
    return [float(len(text) + int(a)) for text, a in zip(completions, answer)]

async def later(completions, **_):
    import asyncio
    await asyncio.sleep(60 if "loop" in completions else 0)
    return [1.0] * len(completions)

def state(completions, **_):
    import os
    return [float(os.getpid())] * len(completions)
"""


def completions(*texts: str) -> list[Completion]:
    return [Completion(task(str(n)), (5,), text, False) for n, text in enumerate(texts)]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def busy_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("name", ["judge", "later"])
def test_a_function_of_a_file_runs_in_a_process_that_is_killed(file, name):
    runner = RewardRunner(find_rewards([f"{file}:{name}"]), timeout_s=2.0)
    assert runner.score(completions("a")).failures == []
    started = time.monotonic()
    scores = runner.score(completions("a", "loop", "bb"))
    assert time.monotonic() - started < 8
    assert [row[0] is None for row in scores.rows] == [False, True, False]
    ((failure),) = scores.failures
    assert (failure.sample, failure.reason) == (1, "it took more than 2 s")
    runner.close()
    time.sleep(0.1)
    assert not [p for p in psutil.Process().children(recursive=True) if "grpo.rewards.worker" in " ".join(p.cmdline())]


def test_its_process_is_kept_and_what_it_raises_is_said(file):
    runner = RewardRunner(find_rewards([f"{file}:state"]), timeout_s=10.0)
    first, second = runner.score(completions("a")), runner.score(completions("a"))
    assert first.rows == second.rows != [(float(psutil.Process().pid),)]
    (failure,) = RewardRunner(find_rewards([f"{file}:judge"]), timeout_s=10.0).score(completions("raise")).failures
    assert failure.reason == "Raised: KeyError: 'lost'"


def test_a_function_in_memory_runs_in_a_thread_that_is_interrupted():
    ended = threading.Event()

    def judge(completions, **_):
        try:
            while "loop" in completions:
                pass
        finally:
            ended.set()
        return [1.0] * len(completions)

    before = busy_threads()
    scores = RewardRunner([Reward("mine", 1, judge)], timeout_s=0.3).score(completions("a", "loop", "b"))
    assert scores.rows == [(1.0,), (None,), (1.0,)]
    assert scores.failures[0].reason == "it took more than 0.3 s"
    assert ended.is_set() and busy_threads() == before


def test_an_async_function_in_memory_is_cancelled_while_it_waits():
    ended = threading.Event()

    async def later(completions, **_):
        try:
            await asyncio.sleep(60 if "loop" in completions else 0)
        finally:
            ended.set()
        return [1.0] * len(completions)

    before = busy_threads()
    scores = RewardRunner([Reward("mine", 1, later)], timeout_s=0.3).score(completions("a", "loop"))
    assert scores.rows == [(1.0,), (None,)]
    assert scores.failures[0].reason == "it took more than 0.3 s"
    assert ended.is_set() and busy_threads() == before


def test_without_a_limit_nothing_changes_where_it_runs():
    places = []
    runner = RewardRunner([Reward("mine", 1, lambda completions, **_: places.append(threading.get_ident()) or [1.0])])
    assert runner.score(completions("a")).rows == [(1.0,)]
    assert places == [threading.get_ident()]


def test_what_a_thread_raises_is_raised():
    def judge(**_):
        raise KeyError("lost")

    (failure,) = RewardRunner([Reward("mine", 1, judge)], timeout_s=5.0).score(completions("a")).failures
    assert failure.reason == "KeyError: 'lost'"
