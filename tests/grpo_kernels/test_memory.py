"""Whose memory the gradient takes, and that nobody's numbers change by it."""

import copy
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from grpo_kernels import grpo_loss, token_logps
from grpo_kernels.memory import overlaps_itself

from .helpers import FUSED, config, device_of, make_batch


class Passes(torch.autograd.Function):
    """The identity, written in Python, that keeps its output out of sight of the version counter."""

    @staticmethod
    def forward(ctx, x):
        ctx.y = x * 1
        return ctx.y

    @staticmethod
    def backward(ctx, grad):
        return grad * (ctx.y / ctx.y)


PRODUCERS = {
    "matmul": lambda x: x @ torch.eye(x.shape[-1]).to(x),
    "tanh": lambda x: torch.tanh(x),
    "soft cap": lambda x: 3 * torch.tanh(x / 3),
    "exp": lambda x: x.exp(),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "relu": lambda x: x.relu(),
    "slice of a tanh": lambda x: torch.cat((x, x), 1).tanh()[:, : x.shape[1]],
    "expanded": lambda x: (x[:, :1] * 1).expand(x.shape),
    "a function in Python": Passes.apply,
    "leaf": lambda x: x,
    "view of a leaf": lambda x: x.view(x.shape),
}


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("producer", PRODUCERS)
def test_whatever_made_the_logits_the_gradient_is_right(backend, producer):
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    grads = []
    for chosen in (backend, "eager"):
        leaf = batch.logits.clone().requires_grad_()
        token_logps(PRODUCERS[producer](leaf), batch.ids, backend=chosen).sum().backward()
        assert torch.equal(leaf.detach(), batch.logits)
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slice_", [False, True])
def test_a_compiled_model_that_saved_its_logits(slice_):
    """AOT autograd saves tensors beyond the reach of the version counter."""
    torch.compiler.reset()
    hidden, weight = torch.randn(2, 5, 6), torch.randn(6, 19)
    ids, advantages = torch.randint(19, (2, 4)), torch.randn(2)

    def model(weight):
        logits = hidden @ weight
        return logits, torch.logsumexp(logits, -1).pow(2).sum()

    grads = []
    for function in (model, torch.compile(model, backend="aot_eager")):
        leaf = weight.clone().requires_grad_()
        logits, z_loss = function(leaf)
        logits = logits.clone() if function is model else logits
        logits = logits[:, :-1] if slice_ else logits[:, :4].contiguous()
        (grpo_loss(logits, ids, advantages).loss + 0.1 * z_loss).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_new_use_of_overwritten_logits_raises(backend, overwrite):
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    logits = batch.logits.clone().requires_grad_() * 1
    grpo_loss(logits, batch.ids, batch.advantages, overwrite_logits=overwrite, backend=backend).loss.backward(
        retain_graph=True
    )
    for again in (logits, logits[:, :5]):
        with pytest.raises(RuntimeError, match="overwritten by their gradient"):
            token_logps(again, batch.ids, backend=backend)
        with pytest.raises(RuntimeError, match="overwritten by their gradient"):
            grpo_loss(again, batch.ids, batch.advantages, backend=backend)
    with torch.no_grad():
        logits.copy_(batch.logits)
    token_logps(logits, batch.ids, backend=backend)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize(
    ("view", "reason"),
    [(lambda x: x, "leaf"), (lambda x: x[:, :], "leaf"), (lambda x: (x[:, :1] * 1).expand(x.shape), "overlap")],
)
def test_overwriting_refuses_what_it_would_destroy(backend, view, reason):
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    leaf = batch.logits.clone().requires_grad_()
    with pytest.raises(ValueError, match=reason):
        grpo_loss(view(leaf), batch.ids, batch.advantages, overwrite_logits=True, backend=backend)
    assert torch.equal(leaf.detach(), batch.logits)


@pytest.mark.parametrize("backend", FUSED)
def test_without_a_gradient_nothing_is_overwritten(backend):
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    logits = batch.logits.clone().requires_grad_() * 1
    with torch.no_grad():
        grpo_loss(logits, batch.ids, batch.advantages, overwrite_logits=True, backend=backend)
    grpo_loss(logits.detach(), batch.ids, batch.advantages, overwrite_logits=True, backend=backend)
    assert torch.equal(logits.detach(), batch.logits)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("loss_type", ["dapo", "vespo"])
def test_activation_checkpointing(loss_type, overwrite, reentrant):
    batch = make_batch(dtype=torch.float32)
    grads = []
    for checkpointed in (False, True):
        leaf = batch.logits.clone().requires_grad_()

        def loss(x, overwrite=overwrite):
            options = config(loss_type, beta=0.1)
            return grpo_loss(
                x * 1, batch.ids, batch.advantages, **batch.options, overwrite_logits=overwrite, config=options
            ).loss

        (checkpoint(loss, leaf, use_reentrant=reentrant) if checkpointed else loss(leaf)).backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("overwrite", [False, True])
def test_second_derivatives_are_refused(overwrite):
    batch = make_batch()
    logits = batch.logits.clone().requires_grad_() * 1
    loss = grpo_loss(logits, batch.ids, batch.advantages, overwrite_logits=overwrite).loss
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(loss, logits, create_graph=True)


def test_saved_tensors_on_the_cpu():
    batch = make_batch()
    grads = []
    for context in (torch.autograd.graph.save_on_cpu(), torch.enable_grad()):
        leaf = batch.logits.clone().requires_grad_()
        with context:
            grpo_loss(leaf * 1, batch.ids, batch.advantages).loss.backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


def test_overlap():
    x = torch.zeros(3, 4, 5)
    assert not overlaps_itself(x)
    assert not overlaps_itself(x.transpose(0, 2))
    assert not overlaps_itself(x[:, 1:3, ::2])
    assert not overlaps_itself(x[:, :1].expand(3, 1, 5))
    assert overlaps_itself(x[:, :1].expand(3, 4, 5))
    assert overlaps_itself(x.flatten().unfold(0, 5, 2))


def test_config_and_output_can_be_copied():
    batch = make_batch()
    output = grpo_loss(batch.logits, batch.ids, batch.advantages, config=config(beta=0.0))
    assert copy.deepcopy(output).loss == output.loss
    assert copy.deepcopy(config()) == config()
    assert math.isfinite(output.loss.item())
