"""Bytes that one step of a contender takes over its inputs: ``python -m benchmarks.peak CONTENDER CASE_AS_JSON``.

A process of its own, because the allocators of others and what they keep for later would count. The kernel's high-water
mark is set back once the inputs are there and a small step has loaded what a first step loads.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from .cases import SEQUENCES, Case, make_inputs
from .contenders import contenders_of
from .measure import prepare, step


def memory(key: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    found = re.search(rf"^{key}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main(name: str, case: Case) -> None:
    contender = next(c for c in contenders_of(case) if c.name == name)
    small = make_inputs(replace(case, tokens=SEQUENCES, vocabulary=128))
    step(contender, small, *prepare(small))
    x = make_inputs(case)
    source, weight = prepare(x)
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    step(contender, x, source, weight)
    print(memory("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1], Case(**json.loads(sys.argv[2])))
