"""A run's curves as one picture: accuracy with its interval, reward, KL and length over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.errors import InputError

PANELS = (
    ("held-out accuracy", "eval_accuracy", (0.0, 1.0)),
    ("reward", "reward", None),
    ("KL to the reference (nats a token)", "kl", None),
    ("completion length (tokens)", "completions/mean_length", None),
)


def draw(runs: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Write the curves of runs, by name each its rows of metrics, to `path` (.png, .svg or .pdf).

    Raises InputError without matplotlib, for another kind of file and for runs without any row.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InputError("--figure needs matplotlib: pip install 'grpo-kernels[report]'") from error
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"--figure {path}: the name must end with .png, .svg or .pdf")
    for name, rows in runs.items():
        if not rows:
            raise InputError(f"{name} has no metrics yet")
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, metric, limits) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for name, rows in runs.items():
            steps, values = series(rows, metric)
            marks = {"marker": "o", "markersize": 4} if metric == "eval_accuracy" else {}
            (line,) = axes.plot(steps, values, label=name, linewidth=1.5, **marks)
            if metric == "eval_accuracy" and steps:
                (_, low), (_, high) = series(rows, f"{metric}_low"), series(rows, f"{metric}_high")
                if len(low) == len(high) == len(steps):
                    axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if limits:
            axes.set_ylim(*limits)
    if len(runs) > 1:
        figure.axes[0].legend(fontsize=8)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"--figure {path} cannot be written: {error.strerror}") from error


def series(rows: Sequence[Mapping[str, Any]], metric: str) -> tuple[list[int], list[float]]:
    """(steps, values) of a metric where it was measured."""
    found = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
    return [step for step, _ in found], [value for _, value in found]
