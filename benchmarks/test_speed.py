"""The quick cases under pytest-benchmark: ``pytest benchmarks --benchmark-only``."""

import pytest

from .contenders import contenders_of
from .losses import QUICK
from .measure import check, make_inputs, prepare, reference_results, step

pytest.importorskip("pytest_benchmark")

RUNS = [pytest.param(case, c, id=f"{case.name}-{c.name}") for case, _ in QUICK for c in contenders_of(case)]


@pytest.mark.parametrize(("case", "contender"), RUNS)
def test_speed(benchmark, case, contender):
    benchmark.group = case.name
    x = make_inputs(case)
    result = check(contender, x, reference_results(x))
    if result.status in ("missing", "failed"):
        pytest.skip(result.reason)
    assert result.status == "right", result.reason
    benchmark.pedantic(step, setup=lambda: ((contender, x, *prepare(x)), {}), rounds=3)
