"""FSDP2: two processes that share a model's parameters, each with tokens of its own, train like one."""

import functools
import itertools

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from grpo_kernels import (
    UnsupportedHeadError,
    completion_hidden_states,
    find_lm_head,
    linear_grpo_loss,
    linear_token_logps,
    matches_model_logits,
)

from .helpers import config
from .processes import outcomes
from .test_heads import tiny_model, with_lora

WORLD, COMPLETION = 2, 4
MASK = torch.ones(2, 9, dtype=torch.int64)


def ids_of(rank):
    return torch.randint(3, 61, (2, 9), generator=torch.Generator().manual_seed(rank))


def sharded(model, whole=True, **options):
    """Every layer, and the whole model with all that is in none of them; or the causal LM inside the PEFT wrapper."""
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    for layer in causal_lm.model.layers:
        fully_shard(layer, **options)
    fully_shard(model if whole else causal_lm, **options)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    return model


def loss_of(model, rank, entropy_coef=0.0, beta=0.1):
    """The loss of a rank's tokens, with a reference pass of its own: the same model without its adapters."""
    ids = ids_of(rank)
    with torch.no_grad(), model.disable_adapter():
        reference = completion_hidden_states(model, ids, MASK, COMPLETION)
        head = find_lm_head(model)
        ref_logps = linear_token_logps(reference, head.weight, ids[:, -COMPLETION:], **head.options)
    hidden = completion_hidden_states(model, ids, MASK, COMPLETION)
    head = find_lm_head(model)
    return linear_grpo_loss(
        hidden,
        head.weight,
        ids[:, -COMPLETION:],
        torch.tensor([1.0, -0.5]),
        ref_logps=ref_logps,
        **head.options,
        config=config("grpo", beta=beta, entropy_coef=entropy_coef),
    ).loss


def adapter_grads(model):
    """Whole gradients by name."""
    return {
        name: parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def assert_same_grads(actual, expected):
    assert actual.keys() == expected.keys()
    for name, grad in expected.items():
        assert grad.abs().max() > 0
        torch.testing.assert_close(
            actual[name], grad, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name} {text}"
        )


def gradients_are_those_of_one_process(family, whole, entropy_coef):
    """The mean over the ranks; twice over, because the first pass sets FSDP2 up."""
    plain = with_lora(tiny_model(family))
    for rank in range(WORLD):
        (loss_of(plain, rank, entropy_coef) / WORLD).backward()
    expected = adapter_grads(plain)
    model = sharded(with_lora(tiny_model(family)), whole)
    for _ in range(2):
        loss_of(model, dist.get_rank(), entropy_coef).backward()
        assert_same_grads(adapter_grads(model), expected)
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
        model.zero_grad()


def losses_before_their_backward_passes():
    """Two batches' graphs at once: the head that the first one holds is not freed under it."""
    plain, model = with_lora(tiny_model()), sharded(with_lora(tiny_model()))
    for rank in range(WORLD):
        (sum(loss_of(plain, other, entropy_coef=0.1) for other in (rank, rank + 2)) / WORLD).backward()
    losses = [loss_of(model, rank, entropy_coef=0.1) for rank in (dist.get_rank(), dist.get_rank() + 2)]
    for loss in losses:
        loss.backward()
    assert_same_grads(adapter_grads(model), adapter_grads(plain))


def passes_alternate_with_the_models_own():
    plain, model = with_lora(tiny_model()), sharded(with_lora(tiny_model()))
    ids = ids_of(dist.get_rank())
    for _ in range(2):
        loss_of(model, dist.get_rank()).backward()
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=MASK).logits
            torch.testing.assert_close(logits, plain(input_ids=ids, attention_mask=MASK).logits)


def the_models_own_logits_are_those_of_its_head():
    assert matches_model_logits(sharded(with_lora(tiny_model("Gemma2"))))
    assert matches_model_logits(sharded(tiny_model("Cohere")))


def a_head_smaller_than_the_group_is_whole_once_gathered():
    """One row for two ranks: the second one's shard is empty."""
    model = sharded(tiny_model(vocab_size=1, pad_token_id=0, bos_token_id=0, eos_token_id=0))
    assert model.lm_head.weight.to_local().shape[0] == 1 - dist.get_rank()
    assert find_lm_head(model).weight.shape == (1, 16)


def a_frozen_head_is_gathered_with_its_bias():
    plain = tiny_model("Phi")
    head = find_lm_head(sharded(tiny_model("Phi")))
    assert torch.equal(head.weight, plain.lm_head.weight)
    assert torch.equal(head.bias, plain.lm_head.bias)
    assert not isinstance(head.weight, DTensor)
    assert not head.weight.requires_grad


def a_trainable_head_is_refused():
    """Before and after a forward pass, which leaves it gathered."""
    model = tiny_model()
    model.lm_head.weight.requires_grad_()
    model = sharded(model)
    words = "lm_head.weight is a DTensor, of which this rank holds a shard, and trainable: freeze it"
    for _ in range(2):
        with pytest.raises(UnsupportedHeadError, match=words):
            find_lm_head(model)
        model(input_ids=ids_of(0))


def a_shard_is_no_slice_of_a_shared_vocabulary():
    """Passed as it is, the weight would be taken for one whose tokens are the same on all ranks."""
    model = sharded(tiny_model())
    ids = ids_of(dist.get_rank())
    hidden = completion_hidden_states(model, ids, MASK, COMPLETION)
    model.reshard()
    with pytest.raises(ValueError, match=r"tokens of ranks 0 and 1 .* weight.full_tensor\(\)"):
        linear_token_logps(hidden, model.lm_head.weight, ids[:, -COMPLETION:])


CASES = {
    **{
        f"gradients of {family}, {'wrapper' if whole else 'causal LM'}, {entropy_coef}": functools.partial(
            gradients_are_those_of_one_process, family, whole, entropy_coef
        )
        for family, (whole, entropy_coef) in itertools.product(("Llama", "Gemma2"), ((True, 0.0), (False, 0.1)))
    },
    **{
        case.__name__: case
        for case in (
            losses_before_their_backward_passes,
            passes_alternate_with_the_models_own,
            the_models_own_logits_are_those_of_its_head,
            a_head_smaller_than_the_group_is_whole_once_gathered,
            a_frozen_head_is_gathered_with_its_bias,
            a_trainable_head_is_refused,
            a_shard_is_no_slice_of_a_shared_vocabulary,
        )
    },
}


@functools.cache
def failures():
    return outcomes(WORLD, CASES)


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    assert failures().get(name) is None, failures()[name]
