"""A head spread over processes gives the numbers of the whole head in one."""

import functools
import itertools
import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from grpo_kernels import linear_grpo_loss, linear_token_logps
from grpo_kernels.backend import has_triton

from .helpers import LOSS_TYPES, config, device_of, make_batch
from .processes import outcomes

VOCABULARY, WIDTH = 37, 8
SLICES = {2: (20, 17), 3: (22, 1, 14)}
SMALL_CHUNKS = 4 * 8 * 17  # a few rows
HEADS = {
    "frozen": {},
    "bias": {"bias": True, "trainable": True},
    "soft cap": {"trainable": True, "softcap": 3.0, "logit_scale": 0.7},
    "scale": {"bias": True, "logit_scale": 0.25},
}


def own_rows(tensor):
    """This process's rows of a weight or bias."""
    return tensor.split(SLICES[dist.get_world_size()])[dist.get_rank()]


def make_head(dtype=torch.float64, device="cpu", bias=False, trainable=False, **options):
    """``(hidden, weight, bias, options)``, the same on every rank."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)

    hidden, weight, vector = normal(3, 5, WIDTH), normal(VOCABULARY, WIDTH), normal(VOCABULARY)
    hidden.requires_grad_()
    weight.requires_grad_(trainable)
    return hidden, weight, vector.requires_grad_(trainable) if bias else None, options


def leaf_rows(tensor):
    """``own_rows`` as a leaf."""
    return None if tensor is None else own_rows(tensor.detach()).clone().requires_grad_(tensor.requires_grad)


def run(function, hidden, weight, bias, *arguments, loss, **options):
    """``(result, gradients of hidden, weight and bias)``; None for what is frozen."""
    leaves = [None if t is None else t.detach().clone().requires_grad_(t.requires_grad) for t in (hidden, weight, bias)]
    result = function(leaves[0], leaves[1], *arguments, bias=leaves[2], **options)
    loss(result).backward()
    return result, [None if leaf is None else leaf.grad for leaf in leaves]


def assert_same_on_slices(function, head, *arguments, loss, tolerance, names=(), **options):
    """The results of all processes together, and of one with the whole head."""
    hidden, weight, bias, head_options = head
    options = {**head_options, **options}
    expected, whole = run(function, hidden, weight, bias, *arguments, loss=loss, **options)
    group = dist.group.WORLD
    actual, parts = run(
        function, hidden, leaf_rows(weight), leaf_rows(bias), *arguments, loss=loss, process_group=group, **options
    )
    close = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    for name in names:
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            close(one, other, msg=lambda text, name=name: f"{name}: {text}")
    for name, value in getattr(expected, "metrics", {}).items():
        close(actual.metrics[name], value)
    if not names:
        close(actual, expected)
    close(parts[0], whole[0])
    for part, grad in zip(parts[1:], whole[1:], strict=True):
        assert (part is None) == (grad is None)
        if part is not None:
            close(part, own_rows(grad))
    return actual


OUTPUTS = ("loss", "logps", "entropy", "kl", "ratio")


def loss_is_the_same(backend, loss_type):
    """Every head, level, with and without reference and entropy bonus; a temperature for each sequence."""
    dtype, tolerance = (torch.float32, 3e-5) if backend == "triton" else (torch.float64, 1e-10)
    device = device_of(backend)
    batch = make_batch(vocabulary=VOCABULARY, dtype=dtype).to(device)
    temperatures = torch.tensor([0.6, 1.0, 1.5], device=device)
    variants = [("token", 0.0, 0.0, None), ("token", 0.1, 0.05, temperatures), ("sequence", 0.1, 0.0, temperatures)]
    for name, (level, beta, entropy_coef, warm) in itertools.product(HEADS, variants):
        head = make_head(dtype, device, **HEADS[name])
        logps = linear_token_logps(head[0], head[1], batch.ids, 0.8, bias=head[2], backend="torch", **head[3]).detach()
        noise = (batch.options["old_logps"] - batch.options["ref_logps"]).to(dtype)
        assert_same_on_slices(
            linear_grpo_loss,
            head,
            batch.ids,
            batch.advantages,
            **{**batch.options, "old_logps": logps + noise, "ref_logps": logps - noise},
            loss=lambda output: output.loss * 1.5,
            tolerance=tolerance,
            names=OUTPUTS,
            temperatures=warm,
            chunk_bytes=SMALL_CHUNKS,
            backend=backend,
            config=config(
                loss_type, importance_sampling_level=level, beta=beta, entropy_coef=entropy_coef, temperature=0.8
            ),
        )


def logps(*arguments, **options):
    """[1 or 2, B, T]: the log-probabilities, and the entropies if asked for."""
    values = linear_token_logps(*arguments, **options)
    return torch.stack(values if isinstance(values, tuple) else (values,))


def logps_are_the_same(backend, head_name):
    """With and without the entropies in the loss: kept and recomputed derivatives; masked; one temperature or many."""
    dtype, tolerance = (torch.float32, 3e-5) if backend == "triton" else (torch.float64, 1e-10)
    device = device_of(backend)
    batch = make_batch(vocabulary=VOCABULARY)
    ids, mask = batch.ids.to(device), batch.options["completion_mask"].to(device)
    weights = torch.linspace(-1, 1, ids.numel(), dtype=dtype, device=device).view(ids.shape)
    temperatures = torch.tensor([0.5, 1.0, 2.0], device=device)
    for with_entropy, temperature in itertools.product((False, True), (0.7, temperatures)):
        assert_same_on_slices(
            logps,
            make_head(dtype, device, **HEADS[head_name]),
            ids,
            temperature,
            with_entropy,
            loss=lambda values: (values * weights).sum(),
            tolerance=tolerance,
            mask=mask,
            chunk_bytes=SMALL_CHUNKS,
            backend=backend,
        )


def reference_hidden_states_and_rows_without_gradient():
    batch = make_batch(vocabulary=VOCABULARY)
    reference = make_head()[0].detach() + 0.1
    options = {"completion_mask": batch.options["completion_mask"], "ref_hidden": reference}
    for beta, all_metrics in ((0.1, False), (0.0, True), (0.0, False)):
        assert_same_on_slices(
            linear_grpo_loss,
            make_head(**HEADS["bias"]),
            batch.ids,
            torch.tensor([0.0, 1.0, -0.5]),
            loss=lambda output: output.loss,
            tolerance=1e-10,
            names=OUTPUTS,
            all_metrics=all_metrics,
            config=config("dapo", beta=beta),
            **options,
        )


def rows_that_only_some_ranks_need():
    """Numbers that are 0 on one rank and rounding on another: all ranks compute the row."""
    rounding = 1e-30 * dist.get_rank()
    batch = make_batch(vocabulary=VOCABULARY)
    hidden, weight, *_ = make_head()
    arguments = (batch.ids, torch.tensor([rounding, 1.0, -0.5], dtype=torch.float64))
    options = {"loss": lambda output: output.loss, "config": config("dapo")}
    expected, whole = run(linear_grpo_loss, hidden, weight, None, *arguments, all_metrics=True, **options)
    group = dist.group.WORLD
    actual, grads = run(linear_grpo_loss, hidden, own_rows(weight), None, *arguments, process_group=group, **options)
    torch.testing.assert_close(actual.logps, expected.logps, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grads[0], whole[0], rtol=1e-10, atol=1e-10)
    weights = torch.full((3, 5), rounding, dtype=torch.float64)
    weights[1:] = 1.0
    assert_same_on_slices(
        logps, make_head(), batch.ids, 1.0, True, loss=lambda values: (values * weights).sum(), tolerance=1e-10
    )


def packed_sequences():
    batch = make_batch(vocabulary=VOCABULARY)
    hidden, weight, bias, options = make_head(**HEADS["bias"])
    head = (hidden.detach().flatten(0, 1).requires_grad_(), weight, bias, options)
    cu_seqlens = torch.tensor([0, 4, 4, 11, 15])
    for loss_type in ("grpo", "vespo"):
        assert_same_on_slices(
            linear_grpo_loss,
            head,
            batch.ids.flatten(),
            torch.tensor([1.0, 2.0, -1.0, 0.5]),
            loss=lambda output: output.loss,
            tolerance=1e-10,
            names=OUTPUTS,
            cu_seqlens=cu_seqlens,
            config=config(loss_type, temperature=0.9),
        )


def a_slice_of_impossible_tokens():
    """Logits of -inf: all of one rank's, and all of a token's target's."""
    hidden, weight, _, _ = make_head()
    size = SLICES[dist.get_world_size()][-1]
    bias = torch.zeros(VOCABULARY, dtype=torch.float64)
    bias[-size:] = -math.inf
    ids = torch.arange(15).view(3, 5)
    ids[1, 2] = VOCABULARY - 1
    assert_same_on_slices(
        logps,
        (hidden, weight, bias, {}),
        ids,
        1.0,
        True,
        loss=lambda values: values.masked_fill(values == -math.inf, 0.0).sum(),
        tolerance=1e-10,
    )


def a_row_of_impossible_tokens():
    hidden, weight, _, _ = make_head()
    bias = torch.full((VOCABULARY,), -math.inf, dtype=torch.float64)
    values = linear_token_logps(
        hidden, own_rows(weight), torch.zeros(3, 5, dtype=torch.int64), 1.0, True, bias=own_rows(bias),
        process_group=dist.group.WORLD,
    )  # fmt: skip
    assert (values[0] == -math.inf).all()
    assert (values[1] == 0).all()
    values[1].sum().backward()
    assert (hidden.grad == 0).all()


def a_certain_token():
    """The probability of anything else, 36 exp(-30), is far below float32's resolution of 1."""
    weight = torch.zeros(VOCABULARY, WIDTH)
    weight[VOCABULARY - 1, 0] = 30.0
    hidden = torch.zeros(1, 1, WIDTH)
    hidden[..., 0] = 1.0
    for softcap, temperature in ((None, 1.0), (40.0, math.tanh(0.75) * 40 / 30)):
        values = linear_token_logps(
            hidden, own_rows(weight), torch.full((1, 1), VOCABULARY - 1), temperature, softcap=softcap,
            process_group=dist.group.WORLD,
        )  # fmt: skip
        torch.testing.assert_close(
            values.double(), torch.full((1, 1), -36 * math.exp(-30.0)).double(), rtol=1e-5, atol=0
        )


def half_precision(dtype):
    """As near to float64 as the unsharded head of that dtype comes, for the gradient of the hidden states too."""
    batch = make_batch(vocabulary=VOCABULARY)

    def error(head, group):
        wide = [None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in head[:3]]
        options = {"loss": lambda output: output.loss, "config": config("grpo")}
        arguments = (batch.ids, batch.advantages)
        exact, exact_grads = run(linear_grpo_loss, *wide, *arguments, **options)
        parts = head[:3] if group is None else (head[0], leaf_rows(head[1]), leaf_rows(head[2]))
        output, grads = run(linear_grpo_loss, *parts, *arguments, process_group=group, **options)
        assert grads[0].dtype == dtype
        return max((output.logps - exact.logps).abs().max().item(), 10 * (grads[0] - exact_grads[0]).abs().max().item())

    head = make_head(dtype, bias=True, trainable=True)
    assert error(head, dist.group.WORLD) <= 1.5 * error(head, None)


def a_group_of_some_of_the_processes():
    """Other processes take no part."""
    group = dist.new_group([1])
    if dist.get_rank() == 1:
        hidden, weight, *_ = make_head()
        ids = torch.zeros(3, 5, dtype=torch.int64)
        values = linear_token_logps(hidden, weight, ids, process_group=group)
        torch.testing.assert_close(values, linear_token_logps(hidden, weight, ids), rtol=1e-12, atol=1e-12)


def a_distributed_tensor():
    """Its gradients are sharded as it is."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    hidden, weight, bias, _ = make_head(bias=True, trainable=True)
    batch = make_batch(vocabulary=VOCABULARY)

    def loss(weight, bias):
        return linear_grpo_loss(hidden, weight, batch.ids, batch.advantages, bias=bias, config=config("grpo")).loss

    expected = loss(weight, bias)
    expected_grads = torch.autograd.grad(expected, (hidden, weight, bias))
    parts = [distribute_tensor(t.detach(), mesh, [Shard(0)]).requires_grad_() for t in (weight, bias)]
    actual = loss(*parts)
    grad_hidden, *grads = torch.autograd.grad(actual, (hidden, *parts))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(grad_hidden, expected_grads[0], rtol=1e-10, atol=1e-10)
    for part, whole in zip(grads, expected_grads[1:], strict=True):
        assert isinstance(part, DTensor)
        assert part.placements == (Shard(0),)
        torch.testing.assert_close(part.full_tensor(), whole, rtol=1e-10, atol=1e-10)


def refusals():
    hidden, weight, bias, _ = make_head(bias=True)
    rank, world = dist.get_rank(), dist.get_world_size()
    ids = torch.zeros(3, 5, dtype=torch.int64)
    mesh = init_device_mesh("cpu", (world,))
    sharded, copied = (distribute_tensor(weight, mesh, [placement]) for placement in (Shard(0), Replicate()))
    wide = distribute_tensor(weight, mesh, [Shard(1)])
    group = dist.group.WORLD
    part = own_rows(weight)

    def refused(words, hidden=hidden, weight=part, ids=ids, error=ValueError, process_group=group, **options):
        with pytest.raises(error, match=words):
            linear_token_logps(hidden, weight, ids, process_group=process_group, **options)

    refused("tokens of ranks 0 and 1 .* differ; .*full_tensor", ids=ids + rank)
    refused("tokens of ranks 0 and 1 .* differ", hidden=hidden.detach() * (1 + rank))
    refused("tokens of ranks 0 and 1 .* differ", mask=torch.full((3, 5), rank == 0))
    refused("shapes or options of ranks 0 and 1", hidden=hidden[: 3 - rank % 2], ids=ids[: 3 - rank % 2])
    refused("shapes or options of ranks 0 and 1", softcap=1.0 + rank)
    refused("shapes or options of ranks 0 and 1", temperature=1.0 + rank)
    refused(
        "shapes or options of ranks 0 and 1",
        hidden=hidden.float() if rank else hidden,
        weight=part.to(torch.float32 if rank else torch.float64),
    )
    refused("tokens of ranks 0 and 1 .* differ", weight=sharded, process_group=None, ids=ids + rank)
    refused("weight has no rows on rank 1", weight=weight[: 0 if rank == 1 else 5])
    refused("ids holds 37; allowed: 0 to 36", ids=ids + VOCABULARY)
    refused("backend is 'eager', but the head is spread", backend="eager")
    refused("tiled is True, but", tiled=True)
    refused("process_group is str", process_group="world", error=TypeError)
    refused("process_group is given, but weight is a DTensor", weight=sharded)
    refused("weight is a DTensor with placements .*Replicate", weight=copied, process_group=None)
    refused("weight is a DTensor with placements .*Shard.dim=1", weight=wide, process_group=None)
    refused("weight is a DTensor, but bias is not", weight=sharded, process_group=None, bias=own_rows(bias))


CASES = {
    **{
        f"loss {loss_type} {backend}": functools.partial(loss_is_the_same, backend, loss_type)
        for backend in ("torch", "triton")
        for loss_type in (LOSS_TYPES if backend == "torch" else ["dapo"])
    },
    **{
        f"logps {head} {backend}": functools.partial(logps_are_the_same, backend, head)
        for backend in ("torch", "triton")
        for head in (HEADS if backend == "torch" else ["bias", "soft cap"])
    },
    **{
        f"half precision {dtype}": functools.partial(half_precision, dtype) for dtype in (torch.bfloat16, torch.float16)
    },
    **{
        case.__name__: case
        for case in (
            reference_hidden_states_and_rows_without_gradient,
            rows_that_only_some_ranks_need,
            packed_sequences,
            a_slice_of_impossible_tokens,
            a_row_of_impossible_tokens,
            a_certain_token,
            a_group_of_some_of_the_processes,
            a_distributed_tensor,
            refusals,
        )
    },
}
# The kernels do not see how many processes there are, and their interpreter is slow: a few cases of them are enough.
CASES = {name: case for name, case in CASES.items() if "triton" not in name or has_triton()}
CASES_OF = {2: CASES, 3: {name: case for name, case in CASES.items() if "triton" not in name}}


@functools.cache
def failures(world):
    return outcomes(world, CASES_OF[world])


@pytest.mark.parametrize(("world", "name"), [(world, name) for world, cases in CASES_OF.items() for name in cases])
def test_case(world, name):
    assert failures(world).get(name) is None, failures(world)[name]
