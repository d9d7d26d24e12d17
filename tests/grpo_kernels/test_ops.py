"""The operators are well-behaved citizens of torch.library, torch.compile and FakeTensor."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from grpo_kernels import GRPOLossConfig, grpo_loss, ops, token_logps

from .helpers import FUSED, LOSS_TYPES, config, device_of, make_batch


def operator_arguments(backend, options=GRPOLossConfig(beta=0.1)):  # noqa: B008
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    rows = torch.rand(5, 3, 5, device=batch.logits.device).unbind()
    active = batch.options["completion_mask"]
    return (
        batch.logits,
        batch.ids,
        active,
        *rows[:2],
        rows[2],
        None,
        rows[3],
        rows[4],
        None,
        *ops.row_options(options, backend),
    )


@pytest.mark.parametrize("backend", FUSED)
def test_opcheck(backend):
    logits, ids, active, *rest = operator_arguments(backend)
    leaf = logits.clone().requires_grad_()
    torch.library.opcheck(ops.token_stats, (leaf, ids, active, ops.number_tensor(0.7)[0], backend))
    torch.library.opcheck(ops.grpo_rows, (leaf, ids, active, *rest))
    torch.library.opcheck(ops.grpo_rows_, (logits.clone(), ids, active, *rest))
    stats = ops.token_stats(logits, ids, active, ops.number_tensor(0.7)[0], backend)
    row_arguments = (ids, *stats[2:], stats[1], torch.rand_like(stats[0]), None, ops.number_tensor(0.7)[0], backend)
    torch.library.opcheck(ops.row_grad, (logits, *row_arguments))
    torch.library.opcheck(ops.row_grad_, (logits.clone(), *row_arguments))
    torch.library.opcheck(ops.scale_rows_, (logits.clone(), torch.rand_like(stats[0]), backend))


def head_loss(hidden, weight, batch, options, overwrite=False, backend="torch"):
    logits = hidden @ weight
    return grpo_loss(
        logits,
        batch.ids,
        batch.advantages,
        **batch.options,
        overwrite_logits=overwrite,
        backend=backend,
        config=options,
    ).loss


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_compiled_in_one_graph(loss_type, overwrite):
    torch.compiler.reset()
    batch = make_batch(dtype=torch.float32)
    hidden = torch.randn(3, 5, 8, requires_grad=True)
    weight = torch.randn(8, 37, requires_grad=True)
    options = config(loss_type, beta=0.1, entropy_coef=0.01)
    results = []
    for function in (head_loss, torch.compile(head_loss, fullgraph=True, backend="aot_eager")):
        loss = function(hidden, weight, batch, options, overwrite)
        results.append((loss, *torch.autograd.grad(loss, (hidden, weight))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", FUSED)
def test_compiled_by_inductor(backend):
    torch.compiler.reset()
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    hidden = torch.randn(3, 5, 8, device=batch.logits.device, requires_grad=True)
    weight = torch.randn(8, 37, device=batch.logits.device, requires_grad=True)
    results = []
    for function in (head_loss, torch.compile(head_loss, fullgraph=True)):
        loss = function(hidden, weight, batch, config(beta=0.1), backend=backend)
        results.append((loss, *torch.autograd.grad(loss, (hidden, weight))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_new_temperatures_and_lengths_do_not_compile_again():
    torch.compiler.reset()
    graphs = 0

    def count(graph, inputs):
        nonlocal graphs
        graphs += 1
        return graph.forward

    @torch.compile(fullgraph=True, backend=count, dynamic=True)
    def loss(logits, ids, advantages, temperature, epsilon, entropy_coef):
        options = GRPOLossConfig(temperature=temperature, epsilon=epsilon, entropy_coef=entropy_coef)
        return grpo_loss(logits, ids, advantages, config=options).loss

    for step in range(8):
        batch = make_batch(length=5 + step, dtype=torch.float32)
        loss(batch.logits, batch.ids, batch.advantages, 0.5 + step / 10, 0.2 + step / 100, 0.1 + step / 100)
    assert graphs == 1


def test_fake_tensors_go_through():
    with FakeTensorMode():
        logits = torch.randn(2, 3, 11, dtype=torch.bfloat16, requires_grad=True)
        ids = torch.zeros(2, 3, dtype=torch.int64)
        output = grpo_loss(logits, ids, torch.randn(2))
        output.loss.backward()
        assert output.logps.shape == (2, 3)
        assert logits.grad.dtype == torch.bfloat16
        assert token_logps(logits, ids).shape == (2, 3)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_autocast_does_not_change_the_numbers(loss_type, overwrite):
    batch = make_batch(vocabulary=500, dtype=torch.float32)
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            leaf = batch.logits.clone().requires_grad_()
            options = config(loss_type, entropy_coef=0.1)
            output = grpo_loss(leaf * 1, batch.ids, batch.advantages, overwrite_logits=overwrite, config=options)
            output.loss.backward()
            results.append((output.loss, output.logps, output.entropy, leaf.grad))
    assert all(map(torch.equal, *results))
