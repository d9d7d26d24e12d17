"""The support of the sampler is that of transformers, and log-probabilities on it are its own."""

import math

import pytest
import torch
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from grpo.errors import InputError
from grpo.sampler import Sampling, pack_support, support, unpack_support
from grpo_kernels import grpo_loss, token_logps

OPTIONS = [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"temperature": 0.5, "top_k": 9, "top_p": 0.8, "min_p": 0.05}]


@pytest.mark.parametrize("options", OPTIONS)
def test_it_is_what_transformers_samples_from(options):
    torch.manual_seed(0)
    logits, sampling = torch.randn(200, 31) * 2, Sampling(**options)
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(None, scores)
    assert torch.equal(support(logits, sampling), scores > -math.inf)


def test_what_was_sampled_is_inside():
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    assert support(logits, Sampling(top_k=1), torch.tensor([0])).tolist() == [[True, False, True]]


def test_log_probabilities_at_a_temperature():
    logits = torch.tensor([[[0.0, math.log(3.0)]]])
    assert token_logps(logits, torch.tensor([[1]]), 0.5).item() == pytest.approx(-0.10536, abs=1e-5)


def test_on_the_support_the_ratio_is_one():
    """p = [.5, .3, .2], top_k 2, token 0: the sampler drew it with probability .5 / .8."""
    logits = torch.tensor([[[0.5, 0.3, 0.2]]]).log()
    kept = support(logits, Sampling(top_k=2))
    sampler = torch.tensor([[math.log(0.5 / 0.8)]])
    output = grpo_loss(
        logits.masked_fill(~kept, -math.inf), torch.tensor([[0]]), torch.tensor([1.0]), old_logps=sampler
    )
    assert output.ratio.item() == pytest.approx(1.0, abs=1e-6)
    assert token_logps(logits, torch.tensor([[0]])).item() == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize("vocabulary", [1, 8, 13, 64])
def test_a_packed_support_comes_back(vocabulary):
    torch.manual_seed(0)
    mask = torch.rand(3, 5, vocabulary) < 0.5
    mask[..., 0] = True
    packed = pack_support(mask)
    assert packed.dtype == torch.uint8 and packed.shape == (3, 5, -(-vocabulary // 8))
    assert torch.equal(unpack_support(packed, vocabulary), mask)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_p": 0.0}, {"top_k": -1}, {"min_p": 1.5}])
def test_impossible_options_are_refused(options):
    (name,) = options
    with pytest.raises(InputError, match=f"{name} is"):
        Sampling(**options)
