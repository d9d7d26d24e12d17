"""Code judged by tests: what passes, what only looks as if, and what tries to take the reward."""

import json
import logging
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo.errors import InputError
from grpo.rewards import code
from grpo.rewards.code import code_reward, same_output
from grpo.rewards.code_tests import parse_tests

ADD = "def add(a, b):\n    return a + b\n"
ADD_TESTS = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]
ADD_CASES = [{"function": "add", "args": [1, 2], "expected": 3}, {"args": [-1, 1], "expected": 0}]
DOUBLE_PAIRS = [{"stdin": "2\n", "stdout": "4\n"}, {"stdin": "-3\n", "stdout": "-6\n"}]
CHECK = """
METADATA = {"author": "x"}
def check(candidate):
    assert candidate([3, 1, 2]) == [1, 2, 3]
    for n in range(3):
        assert candidate(list(range(n))) == list(range(n)), "sorted already"
    assert abs(candidate([0.5])[0] - 0.5) < 1e-9
    assert True, "prints if it fails"
"""
RAISES = "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    assert True\nassert f(4) == 2"
ONE_FAILS = "def f(x): return x if x < 3 else 0"
FOUR = ["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3", "assert f(4) == 4"]

TABLE = [
    # (completion, tests, expected)
    (ADD, ADD_TESTS, 1),
    (f"Here it is:\n```python\n{ADD}```\nIt adds.", ADD_TESTS, 1),
    (f"```python\ndef add(a, b): return 0\n```\nNo:\n```python\n{ADD}```", ADD_TESTS, 1),
    (f"```python\n{ADD}```\nNo:\n```python\ndef add(a, b): return 0\n```", ADD_TESTS, 0),
    (f"```py title=x\r\n{ADD}```\nprints\n```text\n3\n```", ADD_TESTS, 1),
    (f"```\n{ADD}```", ADD_TESTS, 1),
    (f"```python\n{ADD}", ADD_TESTS, 1),
    (f"```javascript\n{ADD}```", ADD_TESTS, 0),
    (ADD, "\n".join(ADD_TESTS), 1),
    (ADD, json.dumps(ADD_TESTS), 1),
    (ADD, ADD_CASES, 1),
    (ADD, json.dumps(ADD_CASES), 1),
    ("add = lambda a, b: a + b", ADD_TESTS, 1),
    ("class Add:\n    def __call__(self, a, b): return a + b\nadd = Add()", ADD_TESTS, 1),
    ("def add(a, b): return a + b\nif __name__ == '__main__':\n    raise SystemExit(1)", ADD_TESTS, 1),
    ("print('noise')\ndef add(a, b):\n    print('more')\n    return a + b", ADD_TESTS, 1),
    ("def add(a, b): return a - -b", ADD_TESTS, 1),
    ("def add(a, b): return abs(a + b)", [*ADD_TESTS, "assert add(-5, 1) == -4"], 0),
    ("", ADD_TESTS, 0),
    ("I cannot do this.", ADD_TESTS, 0),
    ("def add(a, b): pass", ADD_TESTS, 0),
    ("def add(a): return a", ADD_TESTS, 0),
    ("def addition(a, b): return a + b", ADD_TESTS, 0),
    ("def add(a, b) return a + b", ADD_TESTS, 0),
    ("def add(a, b): return 3", ADD_TESTS, 0),
    ("def add(a, b): return str(a + b)", ADD_TESTS, 0),
    ("def add(a, b): return [a + b]", ADD_TESTS, 0),
    ("def add(a, b): raise ValueError", ADD_TESTS, 0),
    (ADD + "raise ValueError", ADD_TESTS, 0),
    ("# def add(a, b): return a + b", ADD_TESTS, 0),
    (ADD + "import numpy", ADD_TESTS, 0),
    ("def add(a, b): return True if a == 1 else 0", [{"function": "add", "args": [1, 0], "expected": 1}], 0),
    ("def add(a, b): return a + b + 0.0", ADD_TESTS, 1),
    ("def add(a, b): return a + b", [{"function": "add", "args": [0.1, 0.2], "expected": 0.3}], 1),
    ("def add(a, b): return a + b", ["assert add(0.1, 0.2) == 0.3"], 0),
    ("def f(x): return (x, [x])", [{"function": "f", "args": [1], "expected": [1, [1]]}], 1),
    ("def f(x): return (x, [x])", ["assert f(1) == [1, [1]]"], 0),
    ("def f(x): return {'k': x}", [{"function": "f", "args": [None], "expected": {"k": None}}], 1),
    ("def f(x): return x * 10 ** 400", ["assert f(7) == 7 * 10 ** 400"], 1),
    ("def f(x): return {x, (x, x)}", ["assert f(1) == {1, (1, 1)}"], 1),
    ("def f(x): return b'a' + x", ["assert f(b'b') == b'ab'"], 1),
    ("def f(x): return (i * i for i in range(x))", ["assert list(f(3)) == [0, 1, 4]"], 1),
    ("def f(x): return map(str, x)", ["assert f([1]) == ['1']"], 0),
    ("from collections import Counter\ndef f(x): return Counter(x)", ["assert f('aab') == {'a': 2, 'b': 1}"], 1),
    ("def f(x): x.sort()", ["x = [2, 1]\nf(x)\nassert x == [1, 2]"], 1),
    ("def f(x): x = sorted(x)", ["x = [2, 1]\nf(x)\nassert x == [1, 2]"], 0),
    ("def f(x):\n    if x < 0: raise ValueError('x')\n    return x ** 0.5", RAISES, 1),
    ("def f(x): return abs(x) ** 0.5", RAISES, 0),
    ("def f(*a, sep=','): return sep.join(a)", ["assert f('a', 'b', sep='-') == 'a-b'"], 1),
    ("def f(x): return 1.0", ["import math\nassert math.isclose(f(1), 1)"], 1),
    ("def f(x): return float('nan')", ["assert abs(f(1) - 1) < 1e-6"], 0),
    ("def f(x): return sorted(x)", {"check": CHECK}, 1),
    ("def f(x): return x", {"check": CHECK}, 0),
    ("def f(x): return [1, 2, 3]", {"check": CHECK}, 0),
    ("print(int(input()) * 2)", DOUBLE_PAIRS, 1),
    ("print(int(input()) * 2, end='  \\n\\n')", DOUBLE_PAIRS, 1),
    ("import sys\nprint(int(input()) * 2)\nsys.exit(0)", DOUBLE_PAIRS, 1),
    ("if __name__ == '__main__':\n    print(int(input()) * 2)", DOUBLE_PAIRS, 1),
    ("print(int(input()) * 2)\nraise ValueError", DOUBLE_PAIRS, 0),
    ("print('4')", DOUBLE_PAIRS, 0),
    ("print('4\\n-6')", DOUBLE_PAIRS, 0),
    ("print('Answer:', int(input()) * 2)", DOUBLE_PAIRS, 0),
    ("import sys\nprint(int(input()) * 2, file=sys.stderr)", DOUBLE_PAIRS, 0),
    ("print(int(input()) * 2.0)", DOUBLE_PAIRS, 0),
]


def judge(completions, tests, **options) -> list[float | None]:
    entry_point = ["f" if isinstance(t, dict) else "add" for t in tests]
    tests = [t["check"] if isinstance(t, dict) else t for t in tests]
    return code_reward(completions=completions, tests=tests, entry_point=entry_point, **options)


@pytest.fixture(scope="module")
def table_rewards():
    completions, tests, _ = zip(*TABLE, strict=True)
    return judge(completions, tests)


@pytest.mark.parametrize("row", range(len(TABLE)))
def test_reward(row, table_rewards):
    assert table_rewards[row] == TABLE[row][2], TABLE[row][:2]


def test_a_share_of_the_tests():
    completions = [ONE_FAILS, "def f(x): return x", "def f(x):\n    while x > 1: pass\n    return x", "x =", "f = 1"]
    assert judge(completions, [FOUR] * 5, fraction=True, timeout_s=1) == [0.5, 1.0, 0.25, 0.0, 0.0]
    assert judge(["def f(x): return x"], [{"check": CHECK}], fraction=True) == [2 / 3]
    assert judge(["print(4)"], [DOUBLE_PAIRS], fraction=True) == [0.5]


def test_what_ends_loops_or_eats_memory_leaves_the_rest_of_a_batch_alone():
    right = "print(int(input()) * 2)"
    eats = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    bad = {7: "import os\nos.kill(os.getpid(), 9)", 30: "while True: pass", 44: eats}
    started = time.monotonic()
    completions = [bad.get(number, right) for number in range(64)]
    assert judge(completions, [DOUBLE_PAIRS[:1]] * 64, timeout_s=3) == [float(n not in bad) for n in range(64)]
    assert time.monotonic() - started < 10


def test_what_does_not_compile_takes_no_sandbox(monkeypatch):
    coding = "```python\n# -*- coding: x -*-\n1 +"
    broken = ["def f(x)", "", " ", "\0", "x = 'a", "return 5", "f = \ud800", "(" * 1000, coding]
    monkeypatch.setattr(code, "run_python", None)
    monkeypatch.setattr(code, "judge", None)
    assert judge(broken, [FOUR] * len(broken)) == [0.0] * len(broken)


def test_tests_that_cannot_be_judged_from_outside_get_no_verdict(caplog):
    tests = [["assert f(lambda: 5) == 5"], ["import numpy\nassert f(1) == 1"], ["assert f(1) == 1"]]
    with caplog.at_level(logging.WARNING):
        assert judge(["def f(x): return x"] * 3, tests) == [None, None, 1.0]
    assert "no verdict on 1 of 3 completions: f is called with a value of type function" in caplog.text
    assert "No module named 'numpy'" in caplog.text


def test_what_the_tests_define_is_theirs():
    tests = ["def encode(x): return x[::-1]\nassert decode(encode('ab')) == 'ab'\nassert decode('ab') == 'ba'"]
    forged = "def encode(x): return x\ndef decode(x): return x"
    assert judge([forged, "def decode(x): return x[::-1]"], [tests] * 2) == [0.0, 1.0]


def test_setup_code_runs_before_the_tests():
    options = {"tests": [["assert f(A) == [1, 2]"]], "test_setup_code": ["A = [2, 1]"]}
    assert code_reward(completions=["def f(x): return sorted(x)"], **options) == [1.0]


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ([], "tests is empty"),
        (None, "tests is None; it must be text or a list"),
        (["f(1)"], r"a test asserts nothing: 'f\(1\)'"),
        (["assert True"], "a test asserts nothing"),
        (["def helper(): assert f(1)"], "a test asserts nothing"),
        (["assert f(1 == 2"], "a test is not Python"),
        (["def check(candidate): assert candidate(1)"], "no entry_point"),
        ([{"stdin": "1"}], "stdout of a test is None; it must be text"),
        ([{"args": [1], "expected": 1}], "function of a test is None"),
        ([{"function": "f(", "args": [1], "expected": 1}], r"function of a test is 'f\('"),
        ([{"function": "f", "args": 1, "expected": 1}], "args of a test is 1; it must be a list"),
        ([{"function": "f", "args": [1]}], "a test is"),
        ([{"stdin": "1", "stdout": "1"}, "assert f(1)"], "mix"),
        ([3], "a test is 3"),
    ],
)
def test_tests_that_say_nothing_are_refused(tests, message):
    with pytest.raises(InputError, match=f"sample 0: .*{message}"):
        code_reward(completions=["x"], tests=[tests])


def test_functions_named_test_are_called():
    plan = parse_tests(["def test_f():\n    assert f(1) == 1\ndef test_g():\n    assert g(1) == 1"])
    assert plan.names == ("f", "g")
    assert [unit.source for unit in plan.units if unit.counted] == ["test_f()", "test_g()"]


PIECES = ["def f(x):", " return 5", "\n", "```", "```python", "\0", "lambda", "yield", "'" * 3, "(" * 500, "\\"]
HOSTILE = st.one_of(
    st.text(alphabet=st.characters(codec=None), max_size=200),
    st.binary(max_size=100).map(lambda data: data.decode(errors="surrogateescape")),
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
)


@settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(HOSTILE, min_size=40, max_size=40))
def test_hostile_text_gets_nothing(completions):
    assert judge(completions, [FOUR] * 40, timeout_s=3) == [0.0] * 40


def test_output_is_compared_by_lines():
    assert same_output("1 2 \n3\n\n", "1 2\n3")
    assert not same_output("1  2", "1 2")
    assert not same_output(" 1", "1")
    assert not same_output("1\n2", "1 2")
    assert not same_output("", "1")
