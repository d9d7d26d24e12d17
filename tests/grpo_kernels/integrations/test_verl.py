"""verl's helpers under our implementation equal plain torch, gradients too."""

import pytest
import torch

from grpo_kernels.integrations import verl

VOCABULARY, WIDTH, TEMPERATURE = 41, 8, 0.7
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(3, 5, VOCABULARY, generator=GENERATOR, dtype=torch.float64)
HIDDEN = torch.randn(3, 5, WIDTH, generator=GENERATOR, dtype=torch.float64)
WEIGHT = torch.randn(VOCABULARY, WIDTH, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.randint(VOCABULARY, (3, 5), generator=GENERATOR)
UPSTREAM = torch.randn(2, 3, 5, generator=GENERATOR, dtype=torch.float64)


def plain(logits):
    """Log-probabilities of the labels, and entropies."""
    log_probs = torch.log_softmax(logits, -1)
    labels = LABELS.view(logits.shape[:-1])
    return log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)


def gradients(function, *inputs):
    """Values of the function, and the gradients of the inputs under a fixed upstream gradient."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    values = function(*(leaf * 1 for leaf in leaves))
    sum((value * up.reshape(value.shape)).sum() for value, up in zip(values, UPSTREAM, strict=False)).backward()
    return *(value.detach() for value in values), *(leaf.grad for leaf in leaves)


def assert_equal(actual, expected):
    torch.testing.assert_close(actual, tuple(value.view_as(a) for value, a in zip(expected, actual, strict=True)))


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, VOCABULARY), (15, VOCABULARY)])
def test_logprobs_from_logits(shape, inplace):
    logits, labels = LOGITS.view(shape), LABELS.view(shape[:-1])
    actual = gradients(lambda x: (verl.logprobs_from_logits(x, labels, inplace_backward=inplace),), logits)
    assert_equal(actual, gradients(lambda x: plain(x)[:1], logits))


@pytest.mark.parametrize("entropy", [verl.entropy_from_logits, verl.entropy_from_logits_with_chunking])
def test_logprobs_and_entropy_of_the_same_logits(entropy):
    def both(x):
        return verl.logprobs_from_logits(x, LABELS, inplace_backward=False), entropy(x)

    assert_equal(gradients(both, LOGITS), gradients(plain, LOGITS))


def test_logits_that_were_overwritten_are_not_used_again():
    logits = LOGITS.clone().requires_grad_() * 1
    verl.logprobs_from_logits(logits, LABELS).sum().backward()
    with pytest.raises(RuntimeError, match="overwritten"):
        verl.entropy_from_logits(logits)


def test_linear_cross_entropy():
    actual = gradients(lambda h, w: verl.linear_cross_entropy(h, w, LABELS, TEMPERATURE, "none", None), HIDDEN, WEIGHT)
    assert actual[0].shape == (15,)
    assert_equal(actual, gradients(lambda h, w: plain(h @ w.T / TEMPERATURE), HIDDEN, WEIGHT))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_linear_cross_entropy_reduces_log_probabilities(reduction):
    logps, entropy = verl.linear_cross_entropy(HIDDEN, WEIGHT, LABELS, TEMPERATURE, reduction)
    expected, expected_entropy = plain(HIDDEN @ WEIGHT.T / TEMPERATURE)
    torch.testing.assert_close(logps, getattr(expected, reduction)())
    torch.testing.assert_close(entropy, expected_entropy.flatten())


def test_an_unknown_reduction_is_named():
    with pytest.raises(ValueError, match="reduction is 'max'; allowed: none, sum, mean"):
        verl.linear_cross_entropy(HIDDEN, WEIGHT, LABELS, TEMPERATURE, "max")


@pytest.mark.parametrize("shape", [(3, 5), (15,)])
def test_fused_linear_for_ppo(shape):
    module = verl.FusedLinearForPPO(chunk_size=4)
    hidden, labels = HIDDEN.view(*shape, WIDTH), LABELS.view(shape)
    actual = gradients(lambda h, w: module(h, w, labels, TEMPERATURE), hidden, WEIGHT)
    assert_equal(actual, gradients(lambda h, w: plain(h @ w.T / TEMPERATURE), hidden, WEIGHT))


def test_other_shapes_are_named():
    with pytest.raises(ValueError, match=r"logits have shape \[41\]"):
        verl.logprobs_from_logits(LOGITS[0, 0], LABELS[0, 0])
