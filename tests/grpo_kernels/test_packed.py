"""Packed sequences give what padded ones do."""

import pytest
import torch

from grpo_kernels import grpo_loss, linear_grpo_loss, linear_token_logps, token_logps

from .helpers import ALL_BACKENDS, FUSED, LOSS_TYPES, Batch, config, device_of, make_batch

LENGTHS = [3, 5, 0, 1]


def make_pair(dtype=torch.float32, device="cpu", last=37):
    """A padded batch and the same packed: ``(padded, packed, rows)``, rows [B, T] marking the tokens that exist."""
    padded = make_batch(len(LENGTHS), max(LENGTHS), last, dtype=dtype)
    exists = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(-1)
    # A masked token inside a sequence, beside those that packing leaves out.
    mask = exists.clone()
    mask[1, 2] = False
    weights = torch.linspace(0.5, 1.5, exists.numel()).view(exists.shape).masked_fill(~exists, 1.0)
    padded = padded.but(completion_mask=mask, token_weights=weights).to(device)
    exists = exists.to(device)
    options = {key: value[exists] for key, value in padded.options.items()}
    offsets = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], device=device)
    options["cu_seqlens"] = offsets
    packed = Batch(padded.logits[exists], padded.ids[exists], padded.advantages, options)
    return padded, packed, exists


def results(batch, backend, options):
    leaf = batch.logits.clone().requires_grad_()
    output = grpo_loss(leaf * 1, batch.ids, batch.advantages, **batch.options, backend=backend, config=options)
    output.loss.backward()
    return output, leaf.grad


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_equals_padded(backend, loss_type, level):
    padded, packed, exists = make_pair(device=device_of(backend))
    options = config(loss_type, importance_sampling_level=level, beta=0.1, entropy_coef=0.05)
    (expected, expected_grad), (actual, actual_grad) = (results(x, backend, options) for x in (padded, packed))
    torch.testing.assert_close(actual.loss, expected.loss)
    torch.testing.assert_close(actual_grad, expected_grad[exists])
    for name in ("logps", "entropy", "kl", "ratio"):
        one, other = getattr(actual, name), getattr(expected, name)
        torch.testing.assert_close(one, other if other.shape[-1] == 1 else other[exists])
    for name, value in expected.metrics.items():
        torch.testing.assert_close(actual.metrics[name], value)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("backend", FUSED)
def test_hidden_states(backend, loss_type):
    padded, packed, exists = make_pair(device=device_of(backend), last=8)
    weight = torch.randn(11, 8, generator=torch.Generator().manual_seed(0)).to(padded.logits)
    found = []
    for batch in (padded, packed):
        hidden = batch.logits.clone().requires_grad_()
        reference = {"ref_logps": None, "ref_hidden": batch.logits * 0.9}
        output = linear_grpo_loss(
            hidden,
            weight,
            batch.ids,
            batch.advantages,
            **(batch.options | reference),
            backend=backend,
            config=config(loss_type, beta=0.1),
        )
        output.loss.backward()
        found.append((output.loss, hidden.grad, output.logps, output.kl))
    for actual, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(actual, expected[exists] if expected.dim() else expected)


@pytest.mark.parametrize("backend", FUSED)
def test_log_probabilities_of_rows(backend):
    padded, packed, exists = make_pair(device=device_of(backend))
    expected = token_logps(padded.logits, padded.ids, 0.7, backend=backend)
    torch.testing.assert_close(token_logps(packed.logits, packed.ids, 0.7, backend=backend), expected[exists])
    weight = torch.eye(37, device=padded.logits.device)
    actual = linear_token_logps(packed.logits, weight, packed.ids, 0.7, backend=backend)
    torch.testing.assert_close(actual, expected[exists], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("overwrite", [False, True])
def test_advantages_per_token_and_overwritten_logits(overwrite):
    padded, packed, exists = make_pair()
    per_token = packed.but(advantages=padded.advantages.unsqueeze(-1).expand(exists.shape)[exists])
    expected, expected_grad = results(padded, "torch", config())
    actual, actual_grad = results(per_token.but(overwrite_logits=overwrite), "torch", config())
    torch.testing.assert_close(actual.loss, expected.loss)
    torch.testing.assert_close(actual_grad, expected_grad[exists])


def test_compiled_in_one_graph():
    torch.compiler.reset()
    _, packed, _ = make_pair()

    def loss(logits):
        return grpo_loss(logits * 1, packed.ids, packed.advantages, **packed.options, max_seqlen=6).loss

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (loss, compiled):
        leaf = packed.logits.clone().requires_grad_()
        function(leaf).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"cu_seqlens": torch.tensor([0, 4, 8])}, ValueError, ["cu_seqlens", "0 to 8", "0 to 9"]),
        ({"cu_seqlens": torch.tensor([1, 4, 9])}, ValueError, ["cu_seqlens", "1 to 9", "0 to 9"]),
        ({"cu_seqlens": torch.tensor([0, 7, 4, 9])}, ValueError, ["cu_seqlens", "decreases"]),
        ({"cu_seqlens": torch.tensor([0.0, 9.0])}, TypeError, ["cu_seqlens", "float32", "int64"]),
        ({"cu_seqlens": torch.tensor([9])}, ValueError, ["cu_seqlens", "[1]", "[B + 1]"]),
        ({"max_seqlen": 2}, ValueError, ["max_seqlen", "2", "at least 5"]),
        ({"max_seqlen": 0}, ValueError, ["max_seqlen", "0", ">= 1"]),
        ({"logits": torch.zeros(1, 9, 37)}, ValueError, ["logits", "[1, 9, 37]", "[N, V]"]),
        ({"advantages": torch.zeros(5)}, ValueError, ["advantages", "[5]", "[4]", "[9]"]),
        ({"old_logps": torch.zeros(4, 5)}, ValueError, ["old_logps", "[4, 5]", "[9]"]),
    ],
)
def test_bad_input_is_refused_by_name(changes, error, words):
    batch = make_pair()[1].but(**changes)
    with pytest.raises(error) as caught:
        grpo_loss(batch.logits, batch.ids, batch.advantages, **batch.options)
    for word in words:
        assert word in str(caught.value)
