"""One HTML file that holds all it shows: figures, plots, samples and the code that draws them.

What a run wrote is untrusted. The template escapes every text; samples reach the page as JSON that a script puts
in as text; names in plots are escaped once more, because plotly reads markup; and a content security policy lets the
file's own scripts run and nothing else, and nothing be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.console import printable
from grpo.errors import InputError
from grpo.report.configuration import settings, without_sandbox, written
from grpo.report.curves import POINTS, Curve, curve
from grpo.report.runs import Run
from grpo.report.samples import GROUP, LENGTH, QUESTIONS, cards, fitting
from grpo.report.sections import Panel, arrange
from grpo.report.summary import alarms, facts, time_shares, verdict

HERE = Path(__file__).parent


def render(runs: Sequence[Run]) -> str:
    """The page of one run, or of several beside each other. Raises InputError without plotly."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    plotly, script = plotly_script(), (HERE / "page.js").read_text(encoding="utf-8")
    sections, plots = draw_sections(runs)
    shown = [card | {"run": number} for number, run in enumerate(runs) for card in cards(run.samples)]
    kept, length = fitting(shown)
    options = settings([run.config for run in runs])
    environment = [
        (printable(name), [written(run.environment.get(name)) for run in runs])
        for name in dict.fromkeys(name for run in runs for name in run.environment)
    ]
    template = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    ).get_template("page.html")
    return template.render(
        runs=[
            {
                "name": run.name,
                "verdict": verdict(run),
                "facts": facts(run),
                "alarms": alarms(run),
                "shares": time_shares(run),
                "without_sandbox": without_sandbox(run.config),
            }
            for run in runs
        ],
        sections=sections,
        is_smoothed=any("smooth" in curve for plot in plots.values() for curve in plot["curves"]),
        is_thinned=max(len(run.rows) for run in runs) > POINTS,
        points=POINTS,
        splits=[split for split in ("probe", "held_out", "train") if any(card["split"] == split for card in kept)],
        left_out=[(run.name, note) for run in runs for note in left_out(run, length)],
        options=options,
        environment=environment,
        data=embedded({"plots": plots, "cards": kept, "runs": [run.name for run in runs]}),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        plotly=plotly,
        script=script,
        policy=policy([plotly, script]),
    )


def draw_sections(runs: Sequence[Run]) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Sections with their plots for the template, and by the plot's id what the script draws.

    Curves that never change are written in words.
    """
    names = dict.fromkeys(name for run in runs for row in run.rows for name in row)
    sections: list[dict[str, Any]] = []
    plots: dict[str, dict[str, Any]] = {}
    for section, panels in arrange(names):
        drawn, constant = [], []
        for panel, metrics in panels:
            for title, curves in plots_of(runs, panel, metrics):
                curves = [curve for curve in curves if curve.x]
                legend = [(curve.style, curve.label, described(curve, panel.is_share)) for curve in curves]
                if all(curve.is_constant for curve in curves):
                    constant += [{"title": title, "legend": legend}] if curves and panel.against == "step" else []
                    continue
                id = f"plot-{len(plots)}"
                drawn.append({"id": id, "title": title, "note": panel.note, "legend": legend})
                plots[id] = {
                    "share": panel.is_share,
                    "path": panel.against != "step",
                    "curves": [curve.to_dict() for curve in curves],
                }
        id = section.title.lower().replace(" ", "-")
        sections.append({"title": section.title, "id": id, "plots": drawn, "constant": constant})
    return sections, plots


def plots_of(runs: Sequence[Run], panel: Panel, metrics: Sequence[tuple[str, str]]) -> list[tuple[str, list[Curve]]]:
    """(title, curves) of each plot of a panel.

    One run has all curves of a panel in one plot; of several, each metric has a plot with a curve for every run.
    """
    if len(runs) == 1:
        curves = [
            curve(runs[0].rows, name, printable(label), style, panel.against)
            for style, (name, label) in enumerate(metrics)
        ]
        return [(printable(panel.title), curves)]
    return [
        (
            printable(panel.title if len(metrics) == 1 else f"{panel.title}: {label}"),
            [curve(run.rows, name, run.name, style, panel.against) for style, run in enumerate(runs)],
        )
        for name, label in metrics
    ]


def described(curve: Curve, is_share: bool) -> str:
    """The ends of a curve in words, and its range where that is wider."""
    values = curve.finite
    gaps = len(curve.y) - len(values)
    if not values:
        return "never finite"
    low, high = min(values), max(values)
    # As many digits as it takes to tell the ends of the range apart.
    digits = 3 if high - low > 0.01 * max(abs(low), abs(high)) else 6

    def written(value: float) -> str:
        if is_share:
            return f"{value:.1%}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"

    text = written(values[0])
    if not curve.is_constant and len(values) > 1:
        text += f" → {written(values[-1])}"
    if {low, high} != {values[0], values[-1]}:
        text += f", between {written(low)} and {written(high)}"
    return text + (f"; {gaps:,} not finite" if gaps else "")


def left_out(run: Run, length: int) -> list[str]:
    """What of a run's samples the page does not show."""
    notes = [
        f"{QUESTIONS:,} of {len(pairs):,} {printable(split).replace('_', '-')} questions, evenly spread"
        for split, pairs in run.samples.pairs.items()
        if len(pairs) > QUESTIONS
    ]
    if any(len(group) > GROUP for group in run.samples.groups):
        notes.append(f"the first {GROUP} completions of a training group")
    return notes + ([f"texts cut to about {length:,} characters"] if length < LENGTH else [])


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise InputError("grpo report needs plotly: pip install 'grpo-kernels[report]'") from error
    return get_plotlyjs()


def embedded(data: Any) -> str:
    """JSON that no text in it can end the script element of."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def policy(scripts: Sequence[str]) -> str:
    """Content-Security-Policy: these scripts alone run, and nothing is loaded. Plotly writes style elements."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
