"""Code that is wrong and tries to be rewarded for it: by its results, its process, or what it can find out."""

import pytest

from grpo.rewards.code import code_reward

# f(2) should be 5 and f(3) should be 7. Names in front of the pieces.
FORGERIES = r"""
## exit before the tests
import sys
sys.exit(0)
## exit hard
import os
os._exit(0)
## exit in the call
import os
def f(x): os._exit(0)
## exit by an exception
def f(x): raise SystemExit(0)
## exit at exit
import atexit, os
atexit.register(os._exit, 0)
raise SystemExit
## exit in another thread
import threading, os
threading.Timer(0.01, os._exit, (0,)).start()
def f(x):
    while True: pass
## an object equal to all
class A:
    def __eq__(self, other): return True
def f(x): return A()
## a number equal to all
class A(int):
    def __eq__(self, other): return True
def f(x): return A()
## a list equal to all
class A(list):
    def __eq__(self, other): return True
def f(x): return A()
## text equal to all
class A(str):
    def __eq__(self, other): return True
    __hash__ = None
def f(x): return A()
## an object close to all
class A:
    __sub__ = __abs__ = lambda *a: A()
    __lt__ = lambda *a: True
def f(x): return A()
## a pickle that runs
class A:
    def __reduce__(self): return eval, ("5",)
def f(x): return A()
## builtins replaced
import builtins
builtins.AssertionError = builtins.abs = builtins.all = builtins.isinstance = lambda *a: True
def f(x): return 0
## json replaced
import json
json.loads = json.dumps = lambda *a, **k: '{"value": 5}'
def f(x): return 0
## the harness replaced
import sys
for module in list(sys.modules.values()):
    for name in ("answer", "encode", "dumps", "described"):
        if hasattr(module, name): setattr(module, name, lambda *a: b'{"passed": true}\n')
def f(x): return 0
## unittest replaced
import unittest
unittest.TestCase.assertEqual = lambda *a: None
def f(x): return 0
## expected values in the frames
import sys
frame, found = sys._getframe(), []
while frame:
    found += [v for v in frame.f_locals.values() if "=" + "= 5" in str(v) or "exp" + "ected" in str(v)]
    frame = frame.f_back
def f(x): return 2 * x + 1 if found else 0
## expected values in memory
import gc
found = [o for o in gc.get_objects() if isinstance(o, dict) and "exp" + "ected" in o]
def f(x): return 2 * x + 1 if found else 0
## expected values in the arguments
import sys
found = sys.argv[1:] + [word for word in sys.orig_argv if "ass" + "ert" in word]
def f(x): return 2 * x + 1 if found else 0
## expected values in files
import os
found = [n for d in ("/tmp", "/inside") for n in os.listdir(d) if "expected" in open(f"{d}/{n}").read()
         and n not in ("plain.py", "units.py", "calls.py", "launch.py", "__init__.py")] if os.listdir("/tmp") else []
def f(x): return 2 * x + 1 if found else 0
## expected values in open files
import os
found = []
for fd in range(3, 64):
    try: found.append(b"ass" + b"ert" in os.pread(fd, 1 << 16, 0))
    except OSError: pass
def f(x): return 2 * x + 1 if any(found) else 0
## the verdict printed
print('{"counted": true, "passed": true, "reason": ""}')
def f(x): return 0
## the verdict written to every file
import os
for fd in range(64):
    try: os.write(fd, b'{"counted": true, "passed": true, "reason": ""}\n' * 9)
    except OSError: pass
def f(x): return 0
## an expression as a value
import os
for fd in range(3, 64):
    try: os.write(fd, b'[{"function": true}]\n{"value": {"eval": "5"}}\n')
    except OSError: pass
## two types at once
import os
for fd in range(3, 64):
    try: os.write(fd, b'[{"function": true}]\n{"value": {"int": "5", "list": []}}\n')
    except OSError: pass
## files closed
import os
os.closerange(0, 64)
## an end to the tests' iteration
def f(x): raise StopIteration
## an exception named like an end
class StopIteration(Exception): pass
def f(x): raise StopIteration
## an assertion of its own
def f(x): raise AssertionError
## the tests' own names
abs = _same = _json = all = map = lambda *a: 5
def f(x): return 0
## a function in place of a result
def f(x): return lambda *a: 5
## the class itself
class f:
    def __init__(self, x): pass
    def __eq__(self, other): return True
## a very long number
def f(x): return 10 ** 10 ** 6
## numbers without end
def f(x):
    while True: yield x
## a deep result
def f(x):
    r = []
    for _ in range(10 ** 5): r = [r]
    return r
## a result within itself
def f(x):
    r = []
    r.append(r)
    return r
## a very long result
def f(x): return "x" * (1 << 25)
## not a number
def f(x): return float("nan")
## infinity
def f(x): return float("inf")
## a look-alike of a digit
def f(x): return "\N{ARABIC-INDIC DIGIT FIVE}"
## half of a surrogate pair
def f(x): return "\ud800"
## a null byte
f = "\0"
## the tests quoted
'''assert f(2) == 5'''
## recursion
import sys
sys.setrecursionlimit(10 ** 9)
def f(x): return f(x)
## all memory
def f(x): return [bytearray(1 << 20) for _ in range(1 << 20)]
## a stop of everything
import os
def f(x): os.kill(-1, 19)
"""
TESTS = {
    "asserts": ["assert f(2) == 5", "assert f(3) == 7"],
    "check": "def check(g):\n    assert all(map(lambda pair: abs(g(pair[0]) - pair[1]) < 1e-6, [(2, 5), (3, 7)]))",
    "program": [{"stdin": "", "stdout": "5"}],
}


def forgeries() -> dict[str, str]:
    pieces = [piece.partition("\n") for piece in FORGERIES.split("\n## ")[1:]]
    return {name: code for name, _, code in pieces}


def rewards(completions: list[str], kind: str, timeout_s: float) -> list[float | None]:
    count = len(completions)
    return code_reward(
        completions=completions,
        tests=[TESTS[kind]] * count,
        entry_point=["f"] * count,
        fraction=True,
        timeout_s=timeout_s,
    )


@pytest.mark.parametrize("kind", TESTS)
def test_no_forgery_is_rewarded(kind):
    assert dict.fromkeys(forgeries(), 0.0) == dict(
        zip(forgeries(), rewards(list(forgeries().values()), kind, timeout_s=1), strict=True)
    )


def test_what_is_right_is_rewarded():
    assert [rewards(["def f(x): return 2 * x + 1\nprint(5)"], kind, timeout_s=10) for kind in TESTS] == [[1.0]] * 3
