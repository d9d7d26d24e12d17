"""The report as a browser shows it. At its end every visit must have left no error, dialog or request (`Visits`)."""

import json
import math
import random
import re
import time
from itertools import pairwise

import pytest

from grpo.cli import main
from grpo.report.page import embedded, policy, render
from grpo.report.runs import read_runs
from tests.grpo.report.conftest import RunFolder, Visits, lines, metrics, sample

ALARMS = [
    {"step": 9, "name": "drift", "severity": "warning", "message": "kl is 3", "advice": "raise beta"},
    {"step": 12, "name": "dead_groups", "severity": "critical", "message": "no signal", "advice": "easier questions"},
]
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def report(tmp_path):
    """Writes runs by name and the report of them."""

    def write(**runs):
        folders = [parts.write(tmp_path / name) for name, parts in runs.items()]
        out = tmp_path / "out.html"
        assert main(["report", *map(str, folders), "--output", str(out)]) == 0
        return out

    return write


@pytest.fixture(scope="module")
def shared(browser, tmp_path_factory):
    """The report of one run with alarms, all plots drawn, for tests that leave nothing behind."""
    folder = RunFolder(alarms=ALARMS).write(tmp_path_factory.mktemp("shared") / "first")
    assert main(["report", str(folder)]) == 0
    visits = Visits(browser)
    seen = visits(folder / "report.html", color_scheme="light")
    seen.draw_all()
    yield seen.page
    visits.close()


@pytest.fixture
def page(shared):
    shared.locator("#filters").evaluate("(form) => { form.reset(); form.dispatchEvent(new Event('input')); }")
    shared.emulate_media(color_scheme="light")
    return shared


def html(tmp_path, **parts):
    return render(read_runs([RunFolder(**parts).write(tmp_path / "run")]))


def count(page):
    return page.locator("#count").inner_text()


def choose(page, **values):
    for name, value in values.items():
        field = page.locator(f"#filters [name={name}]")
        if name == "text":
            field.fill(value)
        else:
            field.select_option(value)


def test_the_page_of_a_run(page):
    assert page.locator("h1").inner_text() == "first"
    assert page.locator(".verdict").inner_text() == "Held-out accuracy rose from 40.0% to 80.0%."
    titles = page.locator("h2").all_inner_texts()
    assert titles == [
        "Summary", "Alarms", "Accuracy and reward", "What the reward is made of", "Groups", "Length", "Policy",
        "Speed and memory", "Other metrics", "Samples", "Configuration", "Environment",
    ]  # fmt: skip
    assert [a.get_attribute("href") for a in page.locator("nav a").all()] == [
        f"#{title.lower().replace(' ', '-')}" for title in titles
    ]


def test_critical_alarms_come_first_with_evidence_and_advice(page):
    first, second = page.locator(".alarm").all_text_contents()
    assert all(words in first for words in ("critical", "dead groups", "step 12", "no signal", "easier questions"))
    assert all(words in second for words in ("warning", "drift", "step 9", "kl is 3", "raise beta"))


def test_every_metric_is_drawn_or_said_to_be_constant(page):
    assert page.locator(".plot .main-svg").count() > 10
    assert page.locator(".plot:not(:has(.scatterlayer path))").count() == 0
    assert "all right 0.0%" in page.locator("#groups .constant").inner_text()
    assert page.locator("#other-metrics h3").all_inner_texts() == ["of_its/own"]
    assert "0.002 → 0.1" in page.locator("#policy .legend").first.inner_text()


def test_plots_are_drawn_when_they_come_near(report, visit):
    page = visit(report(run=RunFolder())).page
    assert page.locator("#other-metrics .plot[data-drawn]").count() == 0
    page.locator("#other-metrics").scroll_into_view_if_needed()
    page.locator("#other-metrics .plot[data-drawn]").wait_for()


def test_samples_are_compared_and_filtered(page):
    assert count(page) == "2 of 2 questions"
    assert page.locator(".card").first.locator("pre").all_inner_texts() == ["probe 0?", "probed at 0", "probed at 50"]
    choose(page, split="held_out")
    for result, number in (("right", 8), ("wrong", 2), ("gained", 4), ("lost", 0), ("changed", 10), ("", 10)):
        choose(page, result=result)
        assert count(page) == f"{number} of 10 questions"
        assert page.locator(".card").count() == number
    choose(page, text="IT IS 57")
    assert count(page) == "1 of 10 questions"
    assert page.locator(".card h3").inner_text() == "sum 7"
    choose(page, text="", split="train")
    assert count(page) == "50 of 50 groups"
    assert "1 of 4 right" in page.locator(".card").first.inner_text()


def test_more_samples_are_shown_on_request_and_read_from_there(page):
    choose(page, split="train")
    assert page.locator(".card").count() == 20
    page.locator("#more").click()
    assert page.locator(".card").count() == 40
    assert page.evaluate("document.activeElement.textContent") == "train 21"
    page.locator("#more").click()
    assert page.locator(".card").count() == 50
    assert page.locator("#more").is_hidden()


def test_parts_of_a_reward_show_their_value_and_a_sign_beside_the_colour(report, visit):
    parts = {"xml/correct": 1.0, "xml/format": 0.5, "xml/tone": 0.0, "xml/other": None}
    page = visit(report(run=RunFolder(samples=[sample(0, "probe", "q", "a", True, parts=parts)]))).page
    assert page.locator(".score").all_inner_texts() == [
        "✓ numeric 1", "✓ xml/correct 1", "◐ xml/format 0.5", "✗ xml/tone 0", "– xml/other no verdict",
    ]  # fmt: skip


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "<a href=javascript:alert(1)>x</a>",
    "{{ 7 * 7 }}",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202edesrever\ud800",
]


def hostile_run(name):
    """Every text that a run writes is hostile."""
    rows = []
    for n, text in enumerate(HOSTILE):
        more = {"prompt": [{"role": text, "content": text}], "answer": text}
        more |= {"rewards": {text: 1.0}, "parts": {f"{text}/p": 0.5}}
        rows += [sample(step, "held_out", f"{n} {text}", text, True, **more) for step in (0, 50)]
    values = [
        metrics(n, 50, n in (0, 50)) | {f"rewards/{text}/mean": n / 50 for text in HOSTILE} | {HOSTILE[1]: n}
        for n in range(51)
    ]
    alarm = {"step": 1, "severity": HOSTILE[1], "name": HOSTILE[1], "message": HOSTILE[0], "advice": HOSTILE[3]}
    reward = [f"code:unsafe_sandbox=true,{name}"]
    return RunFolder(values, rows, [alarm], {"data": HOSTILE[0], HOSTILE[1]: HOSTILE[0], "reward": reward})


@pytest.mark.parametrize("runs", [1, 2])
def test_untrusted_text_stays_text(report, visit, runs):
    name = "<img src=x onerror=alert(1)>&lt;b&gt;{{7}}"
    seen = visit(report(**{f"{name}{n}": hostile_run(name) for n in range(runs)}))
    seen.draw_all()
    page = seen.page
    page.locator("#other-metrics .plot .nsewdrag").first.hover(force=True)
    page.locator("#other-metrics .plot .hoverlayer text").first.wait_for()
    assert page.locator("img, iframe, a[href^='javascript'], main script").count() == 0
    assert page.locator(".card pre").first.inner_text() == HOSTILE[0]
    assert page.locator("h1").inner_text() == (f"{name}0" if runs == 1 else "2 runs")
    text = page.locator("body").inner_text()
    assert name in text
    assert "{{ 7 * 7 }}" in text
    assert "\\x1b[31mred" in text and "\\u202edesrever\\ud800" in text
    assert not any(c in text for c in "\x1b\x07\u202e")


def test_json_cannot_end_its_script_element():
    assert "<" not in embedded({"a": "</script><!--"})
    assert json.loads(embedded({"a": "</script><!--"})) == {"a": "</script><!--"}


def test_a_script_that_is_not_of_the_report_would_not_run(report, visit):
    out = report(run=RunFolder())
    out.write_text(
        out.read_text().replace("</main>", "<script>alert(1)</script><img src=data:, onerror=alert(1)></main>")
    )
    seen = visit(out)
    assert seen.page.locator(".card").count() > 0
    assert len(seen.complaints) == 2
    assert all("Content Security Policy" in text for text in seen.complaints)
    seen.complaints.clear()
    assert policy(["a"]).startswith("default-src 'none'; script-src 'sha256-")


@pytest.mark.parametrize("runs", [1, 3])
def test_a_phone_needs_no_sideways_scrolling(report, visit, runs):
    long = sample(0, "probe", "q" * 200, "word" * 300, True, rewards={"r" * 120: 1.0})
    folder = RunFolder(samples=[long], alarms=[ALARMS[0] | {"message": "m" * 300}])
    seen = visit(report(**{f"run{'x' * 60}{n}": folder for n in range(runs)}), **PHONE)
    seen.draw_all()
    seen.page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_dark_mode_reaches_the_plots_when_it_changes(page):
    def colours():
        page.wait_for_timeout(200)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return luminance(back), luminance(page.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill"))

    background, label = colours()
    assert background > 0.8 and label < 0.1
    page.emulate_media(color_scheme="dark")
    background, label = colours()
    assert background < 0.05 and label > 0.7


def luminance(colour):
    """WCAG 2.2's relative luminance of rgb(r, g, b)."""
    values = [int(v) / 255 for v in re.findall(r"\d+", colour)[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(weight * v for weight, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(page, scheme):
    page.emulate_media(color_scheme=scheme)
    pairs = page.evaluate("""() => [...document.querySelectorAll('main *, header *')]
        .filter((e) => !e.closest('svg') && e.textContent)
        .map((e) => {
            let back = e;
            while (getComputedStyle(back).backgroundColor === 'rgba(0, 0, 0, 0)') back = back.parentElement;
            return [getComputedStyle(e).color, getComputedStyle(back).backgroundColor];
        })""")
    assert len({tuple(pair) for pair in pairs}) > 5
    for pair in {tuple(pair) for pair in pairs}:
        low, high = sorted(map(luminance, pair))
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair


def test_the_keyboard_reaches_everything_in_order_and_shows_where_it_is(page):
    page.locator("summary").focus()
    while page.evaluate("document.activeElement !== document.body"):
        page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    order = []
    while True:
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            "[document.activeElement.name || document.activeElement.tagName,"
            " getComputedStyle(document.activeElement).outlineStyle]"
        )
        if name == "BODY":
            break
        assert outline != "none", name
        order.append(name)
    assert order == ["split", "result", "text", "DIV", "SUMMARY", "DIV"]


def test_everything_has_a_name_for_who_does_not_see(page):
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = [int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => h.tagName)")]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.locator(".plot").count() > 10
    assert page.locator(".plot:not([role=img][aria-labelledby][aria-describedby])").count() == 0
    for name in ("Show", "Result"):
        assert page.get_by_role("combobox", name=name).count() == 1
    assert page.get_by_role("searchbox", name="Text").count() == 1
    assert page.locator(".wide:not([role=region][tabindex='0'])").count() == 0


def test_several_runs_are_compared(report, visit):
    other = RunFolder(config={"max_steps": 50, "beta": 0.5, "seed": 0}, alarms=ALARMS)
    page = visit(report(first=RunFolder(), second=other)).page
    assert page.locator("h1").inner_text() == "2 runs"
    assert page.locator(".comparison thead th").all_inner_texts() == ["Figure", "first", "second"]
    legend = page.locator("figure", has_text="Held-out accuracy").first.locator("li")
    assert legend.locator("b").all_inner_texts() == ["first", "second"]
    swatches = [swatch.get_attribute("class").split() for swatch in legend.locator("svg").all()]
    colours, dashes = ({swatch[place] for swatch in swatches} for place in (1, 2))
    assert len(colours) == len(dashes) == 2
    differing = page.locator("table", has_text="Options in which the runs differ").locator("tbody tr")
    assert differing.count() == 1
    assert differing.locator("td").all_inner_texts() == ["0.1", "0.5", "0"]
    choose(page, run="1", split="held_out")
    assert count(page) == "10 of 10 questions"


def test_a_run_that_has_only_begun(report, visit):
    seen = visit(report(run=RunFolder([metrics(1, 50)], samples=None, config=None)))
    seen.draw_all()
    text = seen.page.locator("main").inner_text()
    for words in ("no held-out evaluation", "No samples are recorded", "No configuration is recorded", "No alarm"):
        assert words in text


def test_a_run_without_sandbox_says_so(tmp_path):
    assert "ran without a sandbox" in html(tmp_path, config={"reward": ["code:unsafe_sandbox=true"]})


def test_values_that_are_not_finite_are_counted(tmp_path):
    rows = [metrics(n, 50) | {"grad_norm": math.nan if n > 40 else math.inf if n == 9 else n} for n in range(1, 51)]
    assert "11 not finite" in html(tmp_path, metrics=rows)


def test_where_the_page_is_written(tmp_path, capsys):
    folders = [str(RunFolder().write(tmp_path / name)) for name in ("a", "b")]
    assert main(["report", folders[0]]) == 0
    assert main(["report", *folders]) == 0
    written = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*.html"))]
    assert written == ["a/comparison.html", "a/report.html"]
    assert main(["report", folders[0], "--output", str(tmp_path / "no" / "x.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_figure_alone_is_drawn_without_a_page(tmp_path):
    folder = RunFolder().write(tmp_path / "run")
    assert main(["report", str(folder), "--figure", str(tmp_path / "x.svg")]) == 0
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.slow
def test_a_large_run_is_quick_small_and_usable(tmp_path, visit):
    draw = random.Random(0)
    words = [f"word{n}" for n in range(1000)]
    folder = tmp_path / "large"
    folder.mkdir()
    rows = [{"step": n, **{f"m/{k}": draw.random() for k in range(50)}, "time/step": 1.0} for n in range(1, 10_001)]
    rows[5000]["m/0"] = 99.0
    (folder / "metrics.jsonl").write_text(lines(rows))
    texts = [" ".join(draw.choices(words, k=800)) for _ in range(5000)]
    rows = [sample(n % 4, "held_out", f"q{n // 4}", text, n % 3 == 0) for n, text in enumerate(texts)]
    (folder / "samples.jsonl").write_text(lines(sorted(rows, key=lambda row: row["step"])))

    started = time.monotonic()
    assert main(["report", str(folder)]) == 0
    assert time.monotonic() - started < 20
    assert (folder / "report.html").stat().st_size < 15e6

    started = time.monotonic()
    seen = visit(folder / "report.html")
    assert seen.page.locator(".card").count() == 20
    seen.draw_all()
    assert time.monotonic() - started < 30
    peak = seen.page.evaluate("Math.max(...document.getElementById('plot-0').data.flatMap((t) => t.y))")
    assert peak == 99
    started = time.monotonic()
    choose(seen.page, text="word999", result="wrong")
    assert "of 1,250 questions" in count(seen.page)
    assert time.monotonic() - started < 3
