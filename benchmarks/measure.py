"""Right first, then fast: contenders on the same inputs, in the same process, in interleaved rounds.

A contender whose loss or gradient is wrong is reported as wrong and not timed. A ratio is formed within each round, so
that what slows a round down slows down both of its sides; medians and quartiles are over the rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .cases import Case, Inputs, make_inputs, reference_results
from .contenders import Contender, contenders_of

# The error that is allowed, relative to the norm of what is right (to 1 for the loss).
TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}
LEAST_ROUNDS, MOST_ROUNDS = 3, 30


@dataclass(frozen=True)
class Result:
    """One contender on one case.

    Attributes:
        status: "right", "wrong" (not timed), "missing" or "failed"; ``reason`` says why.
        seconds: the median of the rounds; ratio: to the first of ours, its median, and quartiles.
        errors: of loss and gradients, or of log-probabilities, relative.
        peak_bytes: the most memory held at a time over the inputs, or None where it was not measured.
    """

    case: Case
    contender: str
    device: str
    status: str
    reason: str = ""
    errors: tuple[float, ...] = ()
    seconds: float | None = None
    ratio: float | None = None
    ratio_quartiles: tuple[float, float] | None = None
    rounds: int = 0
    peak_bytes: int | None = None


def prepare(x: Inputs) -> tuple[Tensor, Tensor]:
    """(source, weight) of one step, fresh: contenders may write over logits. Not part of what is timed."""
    weight = x.weight.detach().requires_grad_(x.case.trains_head)
    if x.case.start != "logits":
        return x.hidden.detach().requires_grad_(x.case.start == "hidden"), weight
    with torch.no_grad():
        logits = x.hidden @ x.weight.T
    # Logits that a model computed are no leaf of the graph.
    return logits.add_(torch.zeros((), device=x.device, dtype=logits.dtype, requires_grad=True)), weight


def step(contender: Contender, x: Inputs, source: Tensor, weight: Tensor) -> list[Tensor]:
    """Loss and gradients, or log-probabilities."""
    if x.case.start == "logps":
        with torch.no_grad():
            return [contender.run(x, source, weight)]
    loss = contender.run(x, source, weight)
    wanted = [source, weight] if x.case.trains_head and x.case.start == "hidden" else [source]
    return [loss.detach(), *torch.autograd.grad(loss, wanted)]


def errors(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> tuple[float, ...]:
    """Relative to the norm of what is expected; of a number, to 1 if it is smaller."""

    def error(one: Tensor, other: Tensor) -> float:
        scale = other.norm().item() if other.dim() else max(1.0, other.abs().item())
        return (one.float() - other).norm().item() / max(scale, 1e-30)

    return tuple(error(one, other) for one, other in zip(actual, expected, strict=True))


def check(contender: Contender, x: Inputs, expected: list[Tensor]) -> Result:
    """Whether it is there and right."""
    case, device = x.case, x.device.type
    result = Result(case, contender.name, device, "missing", contender.missing(case, device) or "")
    if result.reason:
        return result
    try:
        found = errors(step(contender, x, *prepare(x)), expected)
    except Exception as error:  # someone else's code: whatever it raises is what there is to report
        return replace(result, status="failed", reason=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    tolerance = TOLERANCES[case.dtype]
    is_right = all(error <= tolerance for error in found)  # NaN is not
    reason = "" if is_right else f"relative errors {', '.join(f'{e:.1e}' for e in found)}; allowed {tolerance:.0e}"
    return replace(result, status="right" if is_right else "wrong", reason=reason, errors=found)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(function: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    started = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - started


def step_seconds(contender: Contender, x: Inputs) -> float:
    source, weight = prepare(x)
    return seconds_of(lambda: step(contender, x, source, weight), x.device)


def compare(
    case: Case, device: str, seconds: float, names: Sequence[str] | None = None, with_memory: bool = False
) -> list[Result]:
    """Check and time all contenders of a case.

    Args:
        seconds: rounds go on for so long, but at least 3 of them.
        names: only these contenders, of which one is ours.
        with_memory: measure peak memory too; on a GPU only, ``with_cpu_peaks`` does it on a CPU.
    """
    x = make_inputs(case, device)
    expected = reference_results(x)
    found = [c for c in contenders_of(case) if names is None or c.name in names]
    results = {c.name: check(c, x, expected) for c in found}
    del expected
    able = [c for c in found if results[c.name].status == "right"]
    times: dict[str, list[float]] = {c.name: [] for c in able}
    deadline = time.perf_counter() + seconds
    rounds = 0
    while able and rounds < MOST_ROUNDS and (rounds < LEAST_ROUNDS or time.perf_counter() < deadline):
        for contender in able:
            times[contender.name].append(step_seconds(contender, x))
        rounds += 1
    base = next((times[c.name] for c in able if c.name.startswith("ours")), None)
    for contender in able:
        own = times[contender.name]
        ratios = [a / b for a, b in zip(own, base, strict=True)] if base else []
        results[contender.name] = replace(
            results[contender.name],
            seconds=statistics.median(own),
            ratio=statistics.median(ratios) if ratios else None,
            ratio_quartiles=_quartiles(ratios) if ratios else None,
            rounds=rounds,
        )
    if with_memory:
        for contender in able:
            results[contender.name] = replace(results[contender.name], peak_bytes=cuda_peak(contender, x))
    return list(results.values())


def _quartiles(values: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def with_cpu_peaks(results: Sequence[Result]) -> list[Result]:
    """The results of a case with peak memory: a fresh process for each contender, two at a time."""
    found = {contender.name: contender for contender in contenders_of(results[0].case)}

    def measured(result: Result) -> Result:
        if result.status != "right":
            return result
        return replace(result, peak_bytes=cpu_peak(found[result.contender], result.case))

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(measured, results))


def cuda_peak(contender: Contender, x: Inputs) -> int:
    """By torch's allocator, over what was there before the step."""
    source, weight = prepare(x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(contender, x, source, weight)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def cpu_peak(contender: Contender, case: Case) -> int | None:
    """The high-water mark of a fresh process over what it held with the inputs; Linux only."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    arguments = [sys.executable, "-m", "benchmarks.peak", contender.name, json.dumps(asdict(case))]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(arguments, capture_output=True, text=True, check=True, env=one_thread)
    return int(result.stdout.split()[-1])
