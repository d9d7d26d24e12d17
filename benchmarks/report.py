"""What a benchmark leaves behind: a table on the screen, a JSON file, and a plot where matplotlib is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from .measure import Result

MIB = 2**20
LEAST_WIDTH = 110  # a narrower table cannot be read


def machine(device: str) -> dict[str, Any]:
    """What the figures hold for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found: dict[str, Any] = {"torch": torch.__version__, "device": device, "processor": _processor()}
    found |= {"threads": torch.get_num_threads(), "cores": cores}
    for package in ("trl", "liger_kernel", "transformers", "triton"):
        if importlib.util.find_spec(package):
            found[package] = importlib.metadata.version(package)
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "gpu_memory_bytes": properties.total_memory}
    return found


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], console: Console | None = None
) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
    for row in rows:
        table.add_row(*row)
    Console(width=max(Console().width, LEAST_WIDTH)).print(table)


def print_results(results: Sequence[Result]) -> None:
    """One case."""
    rows = []
    for result in results:
        if result.seconds is None:
            rows.append((result.contender, f"{result.status}: {result.reason}", "", "", ""))
            continue
        low, high = result.ratio_quartiles or (float("nan"), float("nan"))
        ratio = "" if result.ratio is None else f"{result.ratio:.2f} x ({low:.2f} to {high:.2f})"
        peak = "" if result.peak_bytes is None else f"{result.peak_bytes / MIB:,.0f} MiB"
        rows.append((result.contender, f"{1000 * result.seconds:,.1f} ms", ratio, peak, str(result.rounds)))
    columns = ("", "median of a step", "ratio to ours (quartiles)", "peak memory", "rounds")
    print_table(results[0].case.name, columns, rows)


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    print(f"written: {path}")


def results_as_json(results: Iterable[Result]) -> list[dict[str, Any]]:
    return [asdict(result) | {"case_name": result.case.name} for result in results]


def plot_results(path: Path, results: Sequence[Result]) -> None:
    """Times as multiples of ours, a panel a case; and peak memory where there is some."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed")
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(result.case for result in results))
    panels = [(case, "ratio") for case in cases] + [(case, "peak_bytes") for case in cases]
    bars = {
        (case, key): [(r.contender, getattr(r, key)) for r in results if r.case == case and getattr(r, key) is not None]
        for case, key in panels
    }
    panels = [panel for panel in panels if len(bars[panel]) > 1]
    if not panels:
        print("no plot: nothing to compare")
        return
    figure, axes = pyplot.subplots(len(panels), figsize=(9, 2.2 * len(panels)), squeeze=False, layout="constrained")
    for axis, (case, key) in zip(axes.flat, panels, strict=True):
        names = [name for name, _ in reversed(bars[case, key])]
        values = [value / (MIB if key == "peak_bytes" else 1) for _, value in reversed(bars[case, key])]
        colours = ["tab:blue" if name.startswith("ours") else "tab:gray" for name in names]
        drawn = axis.barh(names, values, color=colours)
        axis.bar_label(drawn, fmt="{:,.2f}" if key == "ratio" else "{:,.0f}", padding=3)
        axis.set_title(case.name, fontsize=9, loc="left")
        axis.set_xlabel(
            "time, as a multiple of ours" if key == "ratio" else "peak memory over the inputs, MiB", fontsize=8
        )
        axis.margins(x=0.12)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    print(f"written: {path}")
