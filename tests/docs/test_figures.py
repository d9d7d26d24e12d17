"""The pictures of the pages come from their script."""

import importlib.util
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


@pytest.fixture(scope="module")
def kernels():
    spec = importlib.util.spec_from_file_location("kernels_figure", FIGURES / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_kernels_are_drawn_in_the_colours_of_the_theme(kernels, theme, tmp_path):
    kernels.draw(theme, tmp_path / "drawn.svg")
    drawn, kept = ((folder / name).read_text() for folder, name in
                   ((tmp_path, "drawn.svg"), (FIGURES, f"kernels_{theme}.svg")))  # fmt: skip
    colours = kernels.THEMES[theme]
    for colour in (colours.ink, colours.memory, colours.gradient):
        assert colour in drawn
        assert colour in kept
