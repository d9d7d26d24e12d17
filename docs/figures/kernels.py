"""Draws docs/figures/kernels_light.svg and kernels_dark.svg: what of size [N, V] exists on the way to the gradient.

``python docs/figures/kernels.py``
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

FOLDER = Path(__file__).parent


class Colours(NamedTuple):
    ink: str
    quiet: str
    memory: str
    gradient: str
    absent: str


THEMES = {
    "light": Colours("#1f2328", "#59636e", "#9ec5f4", "#f3b27a", "#d1d9e0"),
    "dark": Colours("#f0f6fc", "#9198a1", "#2f6db5", "#b06a24", "#3d444d"),
}
WIDE, TALL = 2.6, 2.0  # a block of [N, V]


def block(axes: Axes, x: float, y: float, height: float, text: str, face: str, colours: Colours) -> None:
    axes.add_patch(Rectangle((x, y), WIDE, height, facecolor=face, edgecolor=colours.ink, linewidth=1))
    axes.text(x + WIDE / 2, y + height / 2, text, ha="center", va="center", fontsize=9, color=colours.ink)


def absent(axes: Axes, x: float, y: float, text: str, colours: Colours) -> None:
    """An outline of what is never there."""
    outline = Rectangle((x, y), WIDE, TALL, facecolor="none", edgecolor=colours.quiet, linestyle=(0, (4, 3)))
    axes.add_patch(outline)
    axes.text(x + WIDE / 2, y + TALL / 2, text, ha="center", va="center", fontsize=9, color=colours.quiet)


def arrow(axes: Axes, x: float, y: float, text: str, colours: Colours) -> None:
    axes.annotate(
        "", (x + 1.3, y), (x + 0.1, y), arrowprops={"arrowstyle": "-|>", "color": colours.ink, "linewidth": 1.2}
    )
    axes.text(x + 0.7, y + 0.12, text, ha="center", va="bottom", fontsize=8, color=colours.quiet)


def eager(axes: Axes, colours: Colours) -> None:
    for n, (text, face) in enumerate(
        (("logits", colours.memory), ("log-probabilities\nof all tokens", colours.memory), ("gradient",
          colours.gradient))
    ):  # fmt: skip
        block(axes, n * (WIDE + 1.4), 0, TALL, text, face, colours)
        if n:
            arrow(axes, n * (WIDE + 1.4) - 1.4, TALL / 2, "", colours)


def from_logits(axes: Axes, colours: Colours) -> None:
    block(axes, 0, 0, TALL, "logits", colours.memory, colours)
    arrow(axes, WIDE, TALL / 2, "same memory", colours)
    block(axes, WIDE + 1.4, 0, TALL, "gradient", colours.gradient, colours)
    axes.add_patch(Rectangle((0, 1.25), WIDE, 0.16, facecolor=colours.ink, edgecolor="none"))
    axes.text(2 * WIDE + 1.7, 1.33, "one program for a row:\nsweep 1 loss, sweep 2 gradient", va="center",
              fontsize=8, color=colours.quiet)  # fmt: skip


def from_hidden_states(axes: Axes, colours: Colours) -> None:
    absent(axes, 0, 0, "", colours)
    block(axes, 0, 1.3, 0.5, "logits of a chunk", colours.memory, colours)
    arrow(axes, WIDE, 1.55, "same memory", colours)
    absent(axes, WIDE + 1.4, 0, "", colours)
    block(axes, WIDE + 1.4, 1.3, 0.5, "its gradient", colours.gradient, colours)
    for x in (0, WIDE + 1.4):
        axes.text(x + WIDE / 2, 0.6, "never there", ha="center", va="center", fontsize=8, color=colours.quiet)
    axes.text(2 * WIDE + 1.7, 1.55, "then times the head:\ngradient of hidden states [N, D]", va="center",
              fontsize=8, color=colours.quiet)  # fmt: skip


PANELS = (
    ("eager: three tensors [N, V] and more, in float32", eager),
    ("grpo_loss: one, given by the caller", from_logits),
    ("linear_grpo_loss: none; [n, V], n tokens at a time", from_hidden_states),
)


def draw(theme: str, path: Path) -> None:
    """Write the picture in the colours of `theme`, on a transparent ground."""
    colours = THEMES[theme]
    with matplotlib.rc_context({"svg.hashsalt": "kernels", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(8.2, 6.1), layout="constrained")
        FigureCanvasSVG(figure)
        for axes, (title, panel) in zip(figure.subplots(len(PANELS), 1), PANELS, strict=True):
            axes.set_title(title, loc="left", fontsize=11, color=colours.ink)
            panel(axes, colours)
            axes.set_xlim(-0.1, 3 * WIDE + 2.9)
            axes.set_ylim(-0.15, TALL + 0.15)
            axes.set_aspect("equal")
            axes.axis("off")
        figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    for name in THEMES:
        draw(name, FOLDER / f"kernels_{name}.svg")
