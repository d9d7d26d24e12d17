"""Importance weights and metrics from log-probabilities worked out by hand."""

import math

import pytest
import torch

from grpo.errors import InputError
from grpo.mismatch import importance_weights, mismatch_metrics

# Ratios of trainer over sampler: 2, 1/2, and 4 where nothing counts.
SAMPLER = torch.log(torch.tensor([[0.2, 0.4, 0.1]]))
TRAINER = torch.log(torch.tensor([[0.4, 0.2, 0.4]]))
MASK = torch.tensor([[1, 1, 0]])


@pytest.mark.parametrize(
    ("correction", "cap", "expected"),
    [
        ("token_truncate", 1.5, [[1.5, 0.5, 1.0]]),
        ("token_truncate", 3.0, [[2.0, 0.5, 1.0]]),
        ("token_mask", 1.5, [[0.0, 0.5, 1.0]]),
        ("sequence_truncate", 0.5, [[0.5]]),
        ("sequence_truncate", 3.0, [[1.0]]),
        ("sequence_mask", 0.5, [[0.0]]),
        ("sequence_mask", 1.5, [[1.0]]),
    ],
)
def test_weights(correction, cap, expected):
    weights = importance_weights(SAMPLER, TRAINER, MASK, correction, cap)
    torch.testing.assert_close(weights, torch.tensor(expected))


@pytest.mark.parametrize("correction", ["token_truncate", "sequence_mask"])
def test_what_is_behind_the_mask_may_be_infinite(correction):
    weights = importance_weights(SAMPLER, TRAINER, MASK, correction, 3.0)
    behind = torch.where(MASK.bool(), 0.0, -math.inf)
    assert torch.equal(importance_weights(SAMPLER + behind, TRAINER + behind, MASK, correction, 3.0), weights)


def test_metrics_are_of_unmasked_tokens():
    metrics = mismatch_metrics(SAMPLER, TRAINER, MASK)
    assert metrics["mismatch/logp_difference_mean"] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["mismatch/ratio/max"] == pytest.approx(2.0, abs=1e-6)
    assert metrics["mismatch/ratio/min"] == pytest.approx(0.5, abs=1e-6)
    assert metrics["mismatch/kl"] == pytest.approx((2 - 1 - math.log(2) + 0.5 - 1 + math.log(2)) / 2, abs=1e-6)
    assert mismatch_metrics(SAMPLER, TRAINER, MASK * 0) == {}


def test_an_unknown_correction_is_refused():
    with pytest.raises(InputError, match="importance_sampling_correction is 'none'"):
        importance_weights(SAMPLER, TRAINER, MASK, "none", 2.0)
