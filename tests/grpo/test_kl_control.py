"""The adaptive KL coefficient: exact steps, bounded steps, the state that a checkpoint keeps."""

import json
import math

import pytest

from grpo.errors import InputError
from grpo.kl_control import AdaptiveKLController


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(0.1, 1.0), (0.11, 1.01), (0.09, 0.99), (0.12, 1.02), (5.0, 1.02), (0.08, 0.98), (0.0, 0.98), (-1.0, 0.98)],
)
def test_beta_follows_the_relative_error_clipped_to_a_fifth(kl, factor):
    assert AdaptiveKLController(beta=0.04, target=0.1).update(kl) == pytest.approx(0.04 * factor, rel=1e-12)


def test_the_gain_scales_the_step():
    assert AdaptiveKLController(0.04, 0.1, gain=1.0).update(1.0) == pytest.approx(0.04 * 1.2, rel=1e-12)


def test_a_policy_whose_kl_falls_with_beta_ends_at_the_target():
    controller = AdaptiveKLController(beta=0.01, target=0.1, gain=0.5)
    for _ in range(200):
        controller.update(0.002 / controller.beta)
    assert controller.beta == pytest.approx(0.02, rel=1e-6)


def test_the_state_continues_where_it_was():
    controller = AdaptiveKLController(0.04, 0.1)
    controller.update(0.3)
    resumed = AdaptiveKLController(0.04, 0.1)
    resumed.load_state_dict(json.loads(json.dumps(controller.state_dict())))
    assert resumed.update(0.05) == controller.update(0.05)


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["beta", "kl_target", "kl_gain"])
def test_settings_that_cannot_steer_are_refused(name, bad):
    settings = {"beta": 0.04, "kl_target": 0.1, "kl_gain": 0.1} | {name: bad}
    with pytest.raises(InputError, match=f"{name} is {bad}; .* above 0"):
        AdaptiveKLController(*settings.values())


def test_a_gain_that_could_end_the_penalty_is_refused():
    with pytest.raises(InputError, match="kl_gain is 5.0; it must be below 5"):
        AdaptiveKLController(0.04, 0.1, 5.0)


def test_a_kl_that_is_not_finite_leaves_beta_alone():
    controller = AdaptiveKLController(0.04, 0.1)
    with pytest.raises(FloatingPointError, match="KL to the reference is nan"):
        controller.update(math.nan)
    assert controller.beta == 0.04
