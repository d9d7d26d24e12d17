"""The suites of ``python -m benchmarks``: the loss against others, quickly or over a grid of sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .cases import Case
from .measure import Result, compare, with_cpu_peaks
from .report import machine, plot_results, print_results, results_as_json, write_json

SMALL = Case(tokens=1024, width=576, vocabulary=49152)  # SmolLM2-135M's head
QUICK_BASE = replace(SMALL, tokens=512)
LARGE = Case(tokens=256, width=896, vocabulary=151936)  # Qwen2.5-0.5B's
# Each with the seconds of its rounds; the first with memory. Within 3 minutes on two cores.
QUICK = (
    (QUICK_BASE, 15.0),
    (replace(QUICK_BASE, dead=0.5), 8.0),
    (replace(QUICK_BASE, tokens=256, start="logits"), 4.0),
    (replace(QUICK_BASE, tokens=256, start="logps"), 4.0),
    (LARGE, 15.0),
)
QUICK_SECONDS = 150.0  # after them nothing new is begun

# One axis at a time around these; what a machine has no memory for it leaves out.
SWEEP_BASES = {
    "cpu": SMALL,
    "cuda": Case(tokens=8192, width=1536, vocabulary=151936, dtype="bfloat16"),
}
SWEEP_AXES: dict[str, Sequence[object]] = {
    "tokens": (1024, 4096, 16384, 65536),
    "vocabulary": (32000, 49152, 128256, 151936, 262144),
    "width": (576, 1536, 2048, 4096, 8192),
    "active": (1.0, 0.5, 0.2),
    "dead": (0.0, 0.5),
    "dtype": ("bfloat16", "float32"),
    "beta": (0.0, 0.04),
    "trains_head": (False, True),
    "level": ("token", "sequence"),
    "start": ("hidden", "logits", "logps"),
}
SWEEP_SECONDS = 5.0


def sweep_cases(device: str) -> list[Case]:
    base = SWEEP_BASES[device]
    cases = [replace(base, **{axis: value}) for axis, values in SWEEP_AXES.items() for value in values]  # type: ignore[arg-type]
    return list(dict.fromkeys(cases))


def run_quick(device: str, folder: Path) -> int:
    return _run(device, folder, "quick", QUICK, QUICK_SECONDS)


def run_sweep(device: str, folder: Path) -> int:
    return _run(device, folder, "sweep", [(case, SWEEP_SECONDS) for case in sweep_cases(device)], float("inf"))


def _run(device: str, folder: Path, name: str, cases: Sequence[tuple[Case, float]], limit: float) -> int:
    """Returns 1 if a contender of ours is wrong or failed, else 0."""
    about = machine(device)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    deadline = time.perf_counter() + limit
    results: list[Result] = []
    for case, seconds in cases:
        if time.perf_counter() >= deadline:
            print(f"left out, the time is over: {case.name}")
            continue
        try:
            found = compare(case, device, seconds, with_memory=device == "cuda")
        except (RuntimeError, MemoryError) as error:
            print(f"left out, {case.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            continue
        if device == "cpu" and not results:
            found = with_cpu_peaks(found)
        print_results(found)
        results += found
    write_json(folder / f"{name}.json", {"machine": about, "results": results_as_json(results)})
    plot_results(folder / f"{name}.png", results)
    failures = [r for r in results if r.contender.startswith("ours") and r.status in ("wrong", "failed")]
    for failure in failures:
        print(f"{failure.contender} {failure.status} on {failure.case.name}: {failure.reason}")
    return 1 if failures else 0
