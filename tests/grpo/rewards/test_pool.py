"""What goes wrong in a process costs its item alone, and leaves nothing behind."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from grpo.rewards.pool import Failed, Pool, WorkerError

TARGETS = "tests.grpo.rewards.pool_targets"


@pytest.fixture
def pool():
    found = Pool(f"{TARGETS}:work", workers=2, memory_bytes=256 << 20)
    found.map([("double", 0.0)] * 2, 60)
    yield found
    found.close()


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_a_killed_a_looping_and_a_hungry_item_leave_the_other_61_of_64_alone(pool):
    items = [("double", float(n)) for n in range(64)]
    items[5], items[20], items[40] = ("die",), ("loop",), ("eat",)
    limit_s = 5.0
    started = time.monotonic()
    results = pool.map(items, limit_s)
    seconds = time.monotonic() - started
    assert [n for n, result in enumerate(results) if isinstance(result, Failed)] == [5, 20, 40]
    assert [r for n, r in enumerate(results) if n not in (5, 20, 40)] == [
        2.0 * n for n in range(64) if n not in (5, 20, 40)
    ]
    assert seconds < limit_s + 1
    assert results[5].reason == "its process died"
    assert results[20].reason == "it took more than 5 s"
    assert results[40].reason.startswith("MemoryError")


def test_a_function_that_raises_or_exits_says_why_and_its_process_goes_on(pool):
    (process,) = pool.map([("process",)], 5)
    assert pool.map([("raise", 7.0), ("exit",)], 5) == [Failed("KeyError: 'no 7.0'"), Failed("SystemExit: 3")]
    assert process in pool.map([("process",)] * 8, 5)


def test_what_a_function_prints_is_no_answer(pool):
    assert pool.map([("print", 1.0)], 5) == [2.0]


def test_processes_are_kept_for_the_next_batch(pool):
    before = children()
    pool.map([("double", 1.0)] * 10, 5)
    assert children() == before


def test_no_items_start_no_process():
    assert Pool(f"{TARGETS}:work", 2, 1 << 28).map([], 1) == []


def test_nothing_is_left_after_closing(pool):
    processes = set(pool.map([("process",)] * 16, 10))
    pool.close()
    assert processes and not any(psutil.pid_exists(pid) for pid in processes)
    assert pool.map([("double", 2.0)], 10) == [4.0]


def test_what_a_killed_function_started_is_killed_too(tmp_path):
    pool = Pool(f"{TARGETS}:grandchild", 1, 1 << 28)
    assert isinstance(pool.map([(str(tmp_path / "pid"),)], 1.0)[0], Failed)
    child = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pool.close()


def test_a_function_that_is_not_there_is_an_error():
    with pytest.raises(WorkerError, match="has no function 'nothing'"):
        Pool(f"{TARGETS}:nothing", 1, 1 << 28).map([()], 1)


@pytest.mark.parametrize("kind", ["loop", "loop in C"])
def test_processes_end_with_the_one_that_started_them_whatever_they_do(kind):
    program = (
        "import threading, time\nfrom grpo.rewards.pool import Pool\n"
        f"pool = Pool('{TARGETS}:work', 1, 1 << 28)\nprint(pool.map([('process',)], 30)[0], flush=True)\n"
        f"threading.Thread(target=pool.map, args=([('{kind}',)], 60)).start()\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        time.sleep(0.3)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
