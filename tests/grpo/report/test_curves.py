"""Curves that a page can draw: few points, every peak, gaps where a value is not finite."""

import math
import random

import pytest

from grpo.report.curves import POINTS, curve, smooth, thin


def test_a_curve_has_the_steps_at_which_it_was_measured():
    found = curve([{"step": 0, "other": 1}, {"step": 1, "loss": 2}, {"step": 3, "loss": 4.5}], "loss", "loss")
    assert (found.x, found.y) == ([1, 3], [2, 4.5])
    assert (found.low, found.high, found.smooth) == (None, None, None)


def test_what_is_not_finite_is_a_gap_and_what_is_no_number_is_left_out():
    rows = [{"step": n, "loss": value} for n, value in enumerate((1.0, math.nan, math.inf, "text", True, None, 2.0))]
    assert curve(rows, "loss", "loss").y == [1.0, None, None, 2.0]


def test_an_interval_comes_from_the_metrics_beside_it():
    rows = [{"step": n, "eval": 0.5, "eval_low": 0.4, "eval_high": 0.6} for n in range(2)]
    found = curve(rows, "eval", "eval")
    assert (found.low, found.high) == ([0.4, 0.4], [0.6, 0.6])
    del rows[1]["eval_low"]
    assert curve(rows, "eval", "eval").low is None


def test_a_curve_against_another_metric_has_the_rows_with_both():
    rows = [{"step": 0, "a": 1, "b": 10}, {"step": 1, "a": 2}, {"step": 2, "a": 3, "b": 30}]
    found = curve(rows, "a", "a", against="b")
    assert (found.x, found.y) == ([10, 30], [1, 3])


def test_thinning_keeps_both_ends_and_every_stretchs_extremes():
    values = [random.Random(0).random() for _ in range(10_000)]
    values[4321], values[8765] = 50.0, -50.0
    kept = thin(values, 1000)
    assert len(kept) <= 1000 and kept == sorted(set(kept))
    assert {0, 4321, 8765, 9999} <= set(kept)


def test_a_short_curve_is_kept_whole():
    assert thin([1.0, None, 2.0], 3) == [0, 1, 2]


def test_a_long_gap_stays_a_gap():
    values = [1.0] * 3000 + [None] * 4000 + [2.0] * 3000
    kept = thin(values, 100)
    assert len(kept) <= 100
    assert any(values[n] is None for n in kept)


def test_the_moving_mean_keeps_a_straight_line_and_calms_noise():
    x = [float(n) for n in range(1000)]
    means = smooth(x, x)
    assert means is not None
    assert means[1] == pytest.approx(means[0])
    noisy = smooth(x, [(-1.0) ** n for n in range(1000)])
    assert noisy is not None
    assert max(abs(value) for value in noisy[1][20:-20]) < 0.02


def test_few_points_have_no_moving_mean():
    assert smooth([1.0] * 39, [1.0] * 39) is None


def test_the_page_gets_a_bounded_number_of_points():
    found = curve([{"step": n, "loss": math.sin(n)} for n in range(5000)], "loss", "loss").to_dict()
    assert len(found["x"]) == len(found["y"]) <= POINTS
    assert len(found["smooth"][0]) == len(found["smooth"][1]) <= 250
