"""Merged for the rollout: the same distribution, and the weights come back bit for bit."""

from types import SimpleNamespace

import pytest
import torch

from grpo.batch import TrainSequence, collate
from grpo.errors import InputError
from grpo.merging import merged, merges_by_default
from grpo.policy import make_policy
from tests.grpo.conftest import PAD, character_tokenizer, tiny_model, tiny_policy

BATCH = collate([TrainSequence((3, 8, 4), (5, 6), 1.0)], PAD)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_the_merged_model_is_the_policy(kind):
    policy = tiny_policy(kind)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    plain = policy.logits(BATCH).detach()
    with merged(policy):
        torch.testing.assert_close(policy.logits(BATCH), plain, rtol=0, atol=1e-4)
    assert all(torch.equal(p, before[name]) for name, p in policy.model.named_parameters())
    assert torch.equal(policy.logits(BATCH), plain)


def test_embeddings_that_are_tied_to_an_adapted_head_stay():
    base = tiny_model("llama")
    base.lm_head.weight = base.model.embed_tokens.weight
    policy = make_policy(base, character_tokenizer(), 4, 8, ("lm_head", "q_proj"))
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    plain = policy.logits(BATCH).detach()
    with merged(policy):
        torch.testing.assert_close(policy.logits(BATCH), plain, rtol=0, atol=1e-4)
    assert torch.equal(policy.logits(BATCH), plain)
    assert base.lm_head.base_layer.weight is base.model.embed_tokens.weight


def test_an_error_inside_restores_it_too():
    policy = tiny_policy()
    plain = policy.logits(BATCH).detach()
    with pytest.raises(RuntimeError, match="inside"), merged(policy):
        raise RuntimeError("inside")
    assert torch.equal(policy.logits(BATCH), plain)


def test_half_precision_is_not_merged_unless_asked():
    policy = tiny_policy()
    assert merges_by_default(policy)
    policy.model.get_base_model().to(torch.bfloat16)
    assert not merges_by_default(policy)


def test_copies_that_would_fill_the_memory_are_not_made_unless_asked(monkeypatch):
    policy = tiny_policy()
    layers = [m for name, m in policy.model.named_modules() if name.endswith("base_layer")]
    size = 4 * sum(layer.weight.numel() for layer in layers)
    for total, merges in ((4 * size, True), (4 * size - 4, False)):
        monkeypatch.setattr("psutil.virtual_memory", lambda total=total: SimpleNamespace(total=total))
        assert merges_by_default(policy) == merges


def test_quantised_weights_are_refused():
    policy = tiny_policy()
    layer = policy.model.get_base_model().model.layers[0].self_attn.q_proj.base_layer
    layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.uint8), requires_grad=False)
    with pytest.raises(InputError, match="--merge-lora: the weight of a Linear is quantised"), merged(policy):
        pass
