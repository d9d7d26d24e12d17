"""Learning rates: warm-up, then a decay to a share of the peak."""

import pytest

from grpo.schedule import learning_rate_factor


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_it_warms_up_and_decays_to_its_share(kind):
    factors = [learning_rate_factor(kind, step, 3, 10, 0.1) for step in range(10)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[-1] == pytest.approx(0.1)
    assert factors[3:] == sorted(factors[3:], reverse=True)


def test_the_middle_of_a_decay():
    assert learning_rate_factor("linear", 5, 0, 11, 0.0) == pytest.approx(0.5)
    assert learning_rate_factor("cosine", 5, 0, 11, 0.0) == pytest.approx(0.5)
    assert learning_rate_factor("cosine", 2, 0, 11, 0.0) > learning_rate_factor("linear", 2, 0, 11, 0.0)


def test_a_constant_rate_does_not_decay():
    assert [learning_rate_factor("constant", step, 1, 4, 0.1) for step in range(4)] == [0.5, 1.0, 1.0, 1.0]


def test_a_run_of_one_step_has_the_peak():
    assert learning_rate_factor("linear", 0, 0, 1, 0.1) == 1.0
