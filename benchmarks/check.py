"""Whether we are as fast, beside eager PyTorch, as when the baseline was committed: run by hand, on a quiet machine.

The figures are ratios, eager's time over ours in the same rounds, which machines agree on better than on seconds.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from .cases import Case
from .losses import SMALL
from .measure import compare
from .report import machine, print_table, write_json

BASELINE = Path(__file__).parent / "results" / "baseline.json"
LARGEST_FALL = 0.15
SECONDS = 8.0
CASES = (
    replace(SMALL, tokens=512),
    replace(SMALL, tokens=512, dead=0.5),
    replace(SMALL, tokens=512, start="logits"),
    replace(SMALL, tokens=512, start="logps"),
)


def measured_speedups(device: str, cases: tuple[Case, ...] = CASES, seconds: float = SECONDS) -> dict[str, float]:
    """How many times as fast as eager ours is, by case."""
    found = {}
    for case in cases:
        ours = "ours, logits" if case.start == "logits" else "ours, linear"
        ratios = {r.contender: r.ratio for r in compare(case, device, seconds, names=(ours, "eager"))}
        if None in ratios.values():
            raise RuntimeError(f"ours or eager was not right on {case.name}, so that nothing was timed")
        found[case.name] = ratios["eager"]
    return found  # type: ignore[return-value]


def fallen(baseline: dict[str, float], now: dict[str, float]) -> list[str]:
    """The cases that fell by more than 15%, or are not there any more."""
    return [name for name, before in baseline.items() if now.get(name, 0.0) < (1 - LARGEST_FALL) * before]


def run_check(device: str, update: bool, path: Path = BASELINE, cases: tuple[Case, ...] = CASES) -> int:
    """Returns 1 if a ratio fell; with ``update`` writes the baseline instead."""
    now = measured_speedups(device, cases)
    if update:
        content = {"machine": machine(device), "speedup_over_eager": {name: round(v, 3) for name, v in now.items()}}
        write_json(path, content)
        return 0
    if not path.exists():
        print(f"there is no baseline at {path}: write one with --update")
        return 2
    baseline = json.loads(path.read_text())["speedup_over_eager"]
    lost = fallen(baseline, now)
    rows = [
        (name, f"{before:.2f} x", f"{now.get(name, float('nan')):.2f} x", "fallen" if name in lost else "")
        for name, before in baseline.items()
    ]
    print_table("times as fast as eager", ("", "baseline", "now", ""), rows)
    return 1 if lost else 0
