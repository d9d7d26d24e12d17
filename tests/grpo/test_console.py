"""What a run prints cannot be steered by what a model writes."""

import io

import pytest
from rich.console import Console

from grpo.console import Display, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("46", "46"),
        ("caf\u00e9 \u4e16", "caf\u00e9 \u4e16"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown


def display(terminal: bool) -> tuple[Display, io.StringIO]:
    stream = io.StringIO()
    return Display(Console(file=stream, force_terminal=terminal, width=120, soft_wrap=True)), stream


def test_markup_in_a_line_has_no_effect():
    shown, stream = display(terminal=True)
    shown.say("[bold red]46[/] [/] :smile:")
    assert "[bold red]46[/] [/]" in stream.getvalue()
    assert "\x1b[1;31m" not in stream.getvalue()


def test_without_a_terminal_about_ten_lines_are_printed():
    shown, stream = display(terminal=False)
    with shown.training(50):
        for step in range(1, 51):
            shown.step(step, {"reward": 0.5, "kl": 0.01, "tokens_per_second": 1234.5})
    lines = stream.getvalue().splitlines()
    assert 10 <= len(lines) <= 12
    assert lines[-1] == "step 50/50  reward 0.500  kl 0.0100  tok/s 1,234"
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_there_is_a_bar_with_the_figures():
    shown, stream = display(terminal=True)
    with shown.training(2):
        shown.step(1, {"reward": 0.5, "tokens_per_second": 1234.5})
        shown.step(2, {"reward": 0.75, "kl": 0.01, "tokens_per_second": 1234.5})
    for part in ("2/2", "reward 0.750", "kl 0.0100", "tok/s 1,234"):
        assert part in stream.getvalue()
