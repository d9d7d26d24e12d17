"""``python -m benchmarks --gpu``: everything that a GPU has to show, within 8 minutes.

Right first; then speed as a share of what the machine can do, measured on it, and peak memory; compilations; a training
step. Needs torch, triton, transformers and peft. Others are compared with if they are installed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_kernels import GRPOLossConfig, grpo_loss, linear_grpo_loss

from .cases import Case, make_inputs, reference_results
from .contenders import contenders_of
from .measure import Result, check, compare, seconds_of
from .report import machine, plot_results, print_results, print_table, results_as_json, write_json
from .training_step import ModelShape, build_model, largest_difference, measure_steps

SECONDS = 450.0  # of the 8 minutes; starting and the last step take the rest
GIB = 2**30
ROUNDS = 10

BASE = Case(tokens=8192, width=1536, vocabulary=151936, active=1.0, dtype="bfloat16")
SMALL = replace(BASE, tokens=1024, width=896, active=0.6)


@dataclass(frozen=True)
class Sizes:
    """What is run. ``seconds`` are those of the rounds of one case."""

    right: tuple[Case, ...] = (
        SMALL,
        replace(SMALL, dtype="float32", beta=0.04, trains_head=True),
        replace(SMALL, level="sequence", beta=0.04, dead=0.5),
        replace(SMALL, start="logits", beta=0.04),
        replace(SMALL, start="logits", dtype="float32", level="sequence"),
        replace(SMALL, start="logps"),
    )
    logits: tuple[Case, ...] = (replace(BASE, start="logits"), replace(BASE, start="logits", vocabulary=32000))
    linear: tuple[Case, ...] = (
        BASE,
        replace(BASE, active=0.6, dead=0.5),
        replace(BASE, width=4096, vocabulary=128256, tokens=4096),
    )
    logps: tuple[Case, ...] = (replace(BASE, start="logps"),)
    copied_bytes: int = 2 * GIB
    product: tuple[int, int, int] = (8192, 4096, 16384)
    seconds: float = 6.0
    model: ModelShape = field(default_factory=ModelShape)


def run_gpu(device: str, folder: Path, sizes: Sizes | None = None, seconds: float = SECONDS) -> int:
    """Returns 1 if ours is wrong or failed anywhere, else 0."""
    sizes = sizes or Sizes()
    deadline = time.perf_counter() + seconds
    about = machine(device)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    content: dict[str, Any] = {"machine": about}

    def has_time() -> bool:
        return time.perf_counter() < deadline

    def section(name: str, function: Callable[[], Any]) -> Any:
        if not has_time():
            print(f"left out, the time is over: {name}")
            return None
        print(f"\n== {name}")
        return function()

    right = section("correctness", lambda: check_all(sizes.right, device)) or []
    content["correctness"] = results_as_json(right)
    content["copy_bytes_per_second"] = bandwidth = copy_bandwidth(device, sizes.copied_bytes)
    content["product_flops"] = rates = {
        dtype: product_rate(device, sizes.product, dtype) for dtype in sorted({c.dtype for c in sizes.linear})
    }
    products = ", ".join(f"{dtype} {rate / 1e12:,.1f} TFLOP/s" for dtype, rate in rates.items())
    print(f"copy {bandwidth / 1e9:,.0f} GB/s; products {products}")
    timed: list[Result] = []
    for name, cases in (("logits", sizes.logits), ("linear", sizes.linear), ("log-probabilities", sizes.logps)):
        for case in cases:
            timing = partial(compare, case, device, sizes.seconds, with_memory=device == "cuda")
            found = section(f"{name}: {case.name}", timing)
            if found:
                print_results(found)
                print_shares(found, bandwidth, rates.get(case.dtype))
                timed += found
    content["results"] = [
        row | {"share": share(result, bandwidth, rates.get(result.case.dtype))}
        for row, result in zip(results_as_json(timed), timed, strict=True)
    ]
    content["compilations"] = section("compilations of a run", lambda: compilations(device, sizes.right[0]))
    if content["compilations"] is not None:
        first, later = content["compilations"]
        print(f"Triton compiled {first} kernels in the first step and {later} in those with other sizes and options")
    steps = section("a training step", lambda: training_steps(sizes.model, device, has_time))
    content["training_step"] = steps
    write_json(folder / "gpu.json", content)
    plot_results(folder / "gpu.png", timed)
    failures = [r for r in right + timed if r.contender.startswith("ours") and r.status in ("wrong", "failed")]
    for failure in failures:
        print(f"{failure.contender} {failure.status} on {failure.case.name}: {failure.reason}")
    return 1 if failures else 0


def check_all(cases: tuple[Case, ...], device: str) -> list[Result]:
    """Ours and eager; the others are checked before they are timed."""
    results = []
    for case in cases:
        x = make_inputs(case, device)
        expected = reference_results(x)
        own = [c for c in contenders_of(case) if c.name.startswith("ours") or c.name == "eager"]
        found = [check(contender, x, expected) for contender in own]
        rows = [(r.contender, r.status, r.reason or ", ".join(f"{e:.1e}" for e in r.errors)) for r in found]
        print_table(case.name, ("", "", "relative errors, or why not"), rows)
        results += found
    return results


def copy_bandwidth(device: str, size: int) -> float:
    """Bytes read and written a second by a copy."""
    source = torch.zeros(size // 2 // 4, device=device)
    target = torch.empty_like(source)
    seconds = _median_seconds(lambda: target.copy_(source), device)
    return 2 * source.numel() * 4 / seconds


def product_rate(device: str, shape: tuple[int, int, int], dtype: str) -> float:
    """FLOP/s of [N, D] @ [D, V]."""
    rows, depth, columns = shape
    left = torch.randn(rows, depth, device=device, dtype=getattr(torch, dtype))
    right = torch.randn(columns, depth, device=device, dtype=getattr(torch, dtype))
    out = torch.empty(rows, columns, device=device, dtype=left.dtype)
    return 2 * rows * depth * columns / _median_seconds(lambda: torch.mm(left, right.T, out=out), device)


def _median_seconds(function: Callable[[], object], device: str) -> float:
    function()
    return statistics.median(seconds_of(function, torch.device(device)) for _ in range(ROUNDS))


def share(result: Result, bandwidth: float, rate: float | None) -> float | None:
    """Of the copy bandwidth, for one read and one write of the logits; of the product rate, for 4 N V D FLOPs.

    N are the tokens that are not masked; log-probabilities without a gradient are half of those FLOPs.
    """
    case = result.case
    if result.seconds is None:
        return None
    tokens = case.tokens * case.active
    if case.start == "logits":
        size = torch.finfo(getattr(torch, case.dtype)).bits // 8
        return 2 * tokens * case.vocabulary * size / result.seconds / bandwidth
    flops = (4 if case.start == "hidden" else 2) * tokens * case.vocabulary * case.width
    return None if rate is None else flops / result.seconds / rate


def print_shares(results: list[Result], bandwidth: float, rate: float | None) -> None:
    shares = {r.contender: share(r, bandwidth, rate) for r in results}
    of = "copy bandwidth" if results[0].case.start == "logits" else "product rate"
    print(
        f"share of the {of}: " + ", ".join(f"{name} {value:.0%}" for name, value in shares.items() if value is not None)
    )


def compilations(device: str, case: Case) -> tuple[int, int] | None:
    """Kernels that Triton compiled in a first step, and in later ones of other sizes and options; None without it."""
    if device != "cuda":
        return None
    with _counted_compilations() as found:
        _steps(make_inputs(case, device), temperature=1.0, epsilon=0.2)
        first = len(found)
        for tokens, temperature, epsilon in ((case.tokens // 2, 0.7, 0.1), (case.tokens + 8, 1.3, 0.3)):
            _steps(make_inputs(replace(case, tokens=tokens), device), temperature, epsilon)
    return first, len(found) - first


def _steps(x: Any, temperature: float, epsilon: float) -> None:
    config = GRPOLossConfig(loss_type="dapo", temperature=temperature, epsilon=epsilon)
    options = {"completion_mask": x.mask, "old_logps": x.old_logps, "config": config}
    hidden = x.hidden.detach().requires_grad_()
    linear_grpo_loss(hidden, x.weight, x.ids, x.advantages, **options).loss.backward()
    grpo_loss(hidden @ x.weight.T, x.ids, x.advantages, **options).loss.backward()


@contextmanager
def _counted_compilations() -> Any:
    from triton import knobs

    found: list[str] = []
    before = knobs.runtime.jit_post_compile_hook

    def note(*_: Any, **compiled: Any) -> None:
        found.append(compiled["repr"])

    knobs.runtime.jit_post_compile_hook = note
    try:
        yield found
    finally:
        knobs.runtime.jit_post_compile_hook = before


def training_steps(shape: ModelShape, device: str, has_time: Callable[[], bool]) -> dict[str, Any]:
    model = build_model(shape, device)
    difference = largest_difference(model, shape, device)
    print(f"gradients of eager and ours differ by {difference:.1e} of their norm")
    results = measure_steps(model, shape, device, has_time)
    rows = [
        (
            str(r.sequences),
            r.loss,
            "does not fit" if r.tokens_per_second is None else f"{r.tokens_per_second:,.0f}",
            "" if r.peak_bytes is None else f"{r.peak_bytes / GIB:.1f} GiB",
        )
        for r in results
    ]
    title = f"LoRA step, {shape.layers} layers of {shape.width}, {shape.prompt} + {shape.completion} tokens a sequence"
    print_table(title, ("sequences", "loss", "tokens/s", "peak memory"), rows)
    return {"shape": asdict(shape), "gradient_difference": difference, "steps": [asdict(r) for r in results]}
