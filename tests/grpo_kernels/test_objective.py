"""The closed-form derivative is the derivative, and the weights are the table's."""

import math

import pytest
import torch

from grpo_kernels.objective import entropy_weights, kl_estimate, per_token_derivative, per_token_loss, row_weights

from .helpers import LOSS_TYPES, config

TOKEN_LEVEL = [loss_type for loss_type in LOSS_TYPES if loss_type != "vespo"]


def tokens(batch=4, length=50, seed=0):
    """Log-probabilities whose ratios range from far below to far above the clipping bounds."""
    generator = torch.Generator().manual_seed(seed)

    def normal():
        return torch.randn(batch, length, generator=generator, dtype=torch.float64)

    logps = -2 + 0.5 * normal()
    return logps, logps + 0.8 * normal(), logps + 0.5 * normal(), normal(), torch.rand(batch, length).double() + 0.5


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("delta", [None, 1.1, 1.6])
@pytest.mark.parametrize("loss_type", TOKEN_LEVEL)
def test_derivative_is_that_of_the_loss(loss_type, delta, old, corrected, estimator):
    if delta is not None and loss_type in ("cispo", "sapo"):
        delta = None
    options = config(
        loss_type, delta=delta, beta=0.3, kl_estimator=estimator, use_bias_correction_kl=corrected, epsilon=0.15
    )
    logps, old_logps, ref_logps, advantages, token_weights = tokens()
    old_logps = old_logps if old else None
    logps.requires_grad_()
    mask = torch.ones_like(logps)
    result = per_token_loss(logps, advantages, mask, options, old_logps, ref_logps, token_weights)
    (expected,) = torch.autograd.grad(result.loss.sum(), logps)
    actual = per_token_derivative(logps.detach(), result.ratio.detach(), advantages, options, ref_logps, token_weights)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        ("grpo", [[1 / 6, 1 / 6, 1 / 6], [1 / 2, 0, 0]]),
        ("sapo", [[1 / 6, 1 / 6, 1 / 6], [1 / 2, 0, 0]]),
        ("bnpo", [[1 / 4, 1 / 4, 1 / 4], [1 / 4, 0, 0]]),
        ("dr_grpo", [[1 / 18, 1 / 18, 1 / 18], [1 / 18, 0, 0]]),
        ("dapo", [[1 / 4, 1 / 4, 1 / 4], [1 / 4, 0, 0]]),
        ("cispo", [[1 / 4, 1 / 4, 1 / 4], [1 / 4, 0, 0]]),
        ("vespo", [[1 / 4, 1 / 4, 1 / 4], [1 / 4, 0, 0]]),
        ("luspo", [[1 / 2, 1 / 2, 1 / 2], [1 / 2, 0, 0]]),
    ],
)
def test_row_weights(loss_type, expected):
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0]], dtype=torch.float64)
    weights = row_weights(config(loss_type), mask, None)
    torch.testing.assert_close(weights, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("loss_type", ["dapo", "cispo", "vespo"])
@pytest.mark.parametrize("count", [20, 20.0, torch.tensor(20)])
def test_num_items_in_batch_replaces_the_count_of_this_call(loss_type, count):
    weights = row_weights(config(loss_type), torch.ones(2, 3), count)
    torch.testing.assert_close(weights, torch.full((2, 3), 1 / 20))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_empty_mask_has_no_weight(loss_type):
    mask = torch.zeros(2, 3)
    assert row_weights(config(loss_type), mask, None).tolist() == mask.tolist()
    assert entropy_weights(config(entropy_coef=1.0), mask).tolist() == mask.tolist()


def test_kl_estimators():
    logps, ref = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([-1.5], dtype=torch.float64)
    assert kl_estimate(logps, ref, "k1").item() == pytest.approx(0.5)
    assert kl_estimate(logps, ref, "k2").item() == pytest.approx(0.125)
    assert kl_estimate(logps, ref, "k3").item() == pytest.approx(math.exp(-0.5) + 0.5 - 1)


def test_k3_keeps_its_digits_for_a_policy_close_to_its_reference():
    """exp(d) - d - 1 in float32 would be 0 or negative here."""
    difference = torch.full((1,), 2.0**-13)
    kl = kl_estimate(torch.zeros(1), difference, "k3")
    assert kl.item() == pytest.approx(2.0**-27, rel=1e-2)
