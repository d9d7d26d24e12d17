"""The largest size within a budget, found in few evaluations."""

import pytest

from grpo.memory.search import largest

COSTS = {
    "even": lambda n: 10 + 3 * n,
    "constant": lambda n: 7,
    "a kink": lambda n: max(50 + n, 7 * n),
    "quadratic": lambda n: 5 + n + n * n / 50,
}


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("guess", [1, 8, 500])
@pytest.mark.parametrize("budget", [6.0, 7.0, 40.0, 100.0, 1234.5])
def test_it_is_the_largest_that_fits(name, guess, budget):
    tried = []

    def cost(n):
        tried.append(n)
        return COSTS[name](n)

    expected = max((n for n in range(1, 501) if COSTS[name](n) <= budget), default=None)
    assert largest(cost, budget, 1, 500, guess) == expected
    assert expected is None or expected in tried
    assert len(tried) == len(set(tried)) <= 10
