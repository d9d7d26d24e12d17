"""grpo_loss and token_logps: gradients, memory modes, masks, layouts, extreme logits."""

import itertools
import math

import pytest
import torch

from grpo_kernels import grpo_loss, token_logps
from grpo_kernels.torch_rows import BLOCK_ELEMENTS

from .helpers import ALL_BACKENDS, FUSED, LOSS_TYPES, assert_same, config, device_of, make_batch, run

LEVELS = ["token", "sequence"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_gradcheck_in_float64(loss_type, level):
    # Detached factors (cispo, vespo) are constants only where old log-probabilities fix the ratio's effect; their
    # gradient is compared with autograd's instead.
    batch = make_batch(batch=2, length=3, vocabulary=7)
    options = config(loss_type, importance_sampling_level=level, beta=0.1, temperature=0.8, entropy_coef=0.05)
    if loss_type in ("cispo", "vespo"):
        assert_same(run(batch, "torch", options), run(batch, "eager", options), 1e-12)
        return
    logits = batch.logits.clone().requires_grad_()

    def loss(logits):
        return grpo_loss(logits, batch.ids, batch.advantages, **batch.options, config=options).loss

    assert torch.autograd.gradcheck(loss, logits)


def test_gradcheck_of_token_logps_in_float64():
    batch = make_batch(batch=2, length=3, vocabulary=7)
    logits = batch.logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: token_logps(x, batch.ids, 0.7, return_entropy=True), logits)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_backends_agree(loss_type, backend):
    dtype, tolerance = (torch.float32, 2e-5) if backend == "triton" else (torch.float64, 1e-12)
    batch = make_batch(dtype=dtype)
    for level, corrected, estimator in itertools.product(LEVELS, (False, True), ("k1", "k2", "k3")):
        options = config(
            loss_type,
            importance_sampling_level=level,
            beta=0.1,
            kl_estimator=estimator,
            use_bias_correction_kl=corrected,
            temperature=1.3,
            entropy_coef=0.02,
        )
        assert_same(run(batch, backend, options), run(batch.to(dtype=torch.float64), "eager", options), tolerance)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("options", [{}, {"delta": 1.4}, {"entropy_coef": 0.1}, {"beta": 0.2}])
@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_overwriting_in_the_forward_gives_the_same_gradient(backend, options, scale):
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    gradients = []
    for overwrite in (False, True):
        leaf = batch.logits.clone().requires_grad_()
        logits = leaf * 1
        before = logits.detach().clone()
        output = grpo_loss(
            logits,
            batch.ids,
            batch.advantages,
            **batch.options,
            overwrite_logits=overwrite,
            backend=backend,
            config=config(**options),
        )
        assert torch.equal(logits, before) != overwrite
        (output.loss * scale).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_gradient_is_the_logits_memory(backend, overwrite):
    """Nothing of the size of the logits is allocated: the tensor that autograd passes on is the logits' own."""
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    seen = []
    logits = batch.logits.clone().requires_grad_() * 1
    logits.register_hook(lambda grad: seen.append(grad.data_ptr()))
    options = config(beta=0.1)
    grpo_loss(
        logits,
        batch.ids,
        batch.advantages,
        **batch.options,
        overwrite_logits=overwrite,
        backend=backend,
        config=options,
    ).loss.backward()
    assert seen == [logits.data_ptr()]


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("second_use", ["loss", "logps", "retained graph", "autograd"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_using_overwritten_logits_again_raises(backend, second_use, overwrite):
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    logits = batch.logits.clone().requires_grad_() * 1

    def loss(**options):
        return grpo_loss(logits, batch.ids, batch.advantages, backend=backend, **options).loss

    other = {
        "loss": loss,
        "logps": lambda: token_logps(logits, batch.ids, backend=backend).sum(),
        "retained graph": lambda: None,
        "autograd": lambda: (logits * logits).sum(),
    }[second_use]()
    first = loss(overwrite_logits=overwrite)
    first.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (first if other is None else other).backward()


@pytest.mark.parametrize("backend", FUSED)
def test_a_leaf_keeps_its_values(backend):
    """A parameter used as logits, or seen through a view, must not become its own gradient."""
    batch = make_batch(dtype=torch.float32).to(device_of(backend))
    for view in (lambda x: x, lambda x: x[:, :-1], lambda x: x.view(-1, 1, x.shape[-1])):
        leaf = batch.logits.clone().requires_grad_()
        logits = view(leaf)
        ids = view(batch.ids.unsqueeze(-1)).squeeze(-1)
        token_logps(logits, ids, backend=backend).sum().backward()
        assert torch.equal(leaf.detach(), batch.logits)
        assert leaf.grad.data_ptr() != leaf.data_ptr()
        assert leaf.grad.abs().sum() > 0


def layouts(batch, length, vocabulary, dtype, device):
    """Views [B, T, V] that are not contiguous, each over its own memory."""
    wide = torch.randn(batch, length + 3, vocabulary, dtype=torch.float32).to(device, dtype)
    yield "without the last", wide[:, : length + 2][:, 2:]
    yield "the last", (wide + 0)[:, -length:]
    yield "vocabulary not last in memory", (wide + 0)[:, :length].transpose(1, 2).contiguous().transpose(1, 2)
    yield "part of the vocabulary", (wide + 0)[:, :length, 3:-2]
    yield "sequences interleaved", (wide + 0)[:, :length].transpose(0, 1).contiguous().transpose(0, 1)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strided_logits_give_what_contiguous_ones_do(backend, dtype):
    for name, view in layouts(2, 4, 40, dtype, device_of(backend)):
        ids = torch.arange(8, device=view.device).view(2, 4)
        advantages = torch.tensor([1.0, -1.0], device=view.device)
        for overwrite in (False, True):
            results = []
            for logits in (view, view.contiguous()):
                # An intermediate with the same strides.
                leaf = logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
                intermediate = torch.empty_strided(logits.shape, logits.stride(), dtype=dtype, device=logits.device)
                intermediate = intermediate.copy_(leaf)
                assert intermediate.stride() == logits.stride()
                output = grpo_loss(
                    intermediate, ids, advantages, overwrite_logits=overwrite, backend=backend, config=config()
                )
                output.loss.backward()
                results.append((output.logps, leaf.grad))
            for one, other in zip(*results, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7, msg=f"{name}, overwrite {overwrite}")


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_all_masked_batch_gives_zero_connected_to_the_graph(backend, loss_type):
    batch = make_batch(dtype=torch.float32)
    batch = batch.but(completion_mask=torch.zeros_like(batch.ids))
    output, grad = run(batch, backend, config(loss_type, beta=0.1, entropy_coef=0.1))
    assert output.loss.item() == 0
    assert grad.abs().max() == 0
    assert all(math.isfinite(value.item()) for value in output.metrics.values())


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_an_empty_batch_gives_zero(backend):
    device = device_of(backend)
    logits = torch.zeros(0, 4, 5, device=device, requires_grad=True)
    ids = torch.zeros(0, 4, dtype=torch.int64, device=device)
    output = grpo_loss(logits, ids, torch.zeros(0, device=device), backend=backend)
    output.loss.backward()
    assert output.loss.item() == 0


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_what_stands_at_masked_tokens_does_not_matter(backend, loss_type):
    batch = make_batch(dtype=torch.float32)
    outside = ~batch.options["completion_mask"]
    assert outside.any()
    options = config(loss_type, beta=0.1, entropy_coef=0.1)
    garbage = batch.but(
        ids=batch.ids.masked_fill(outside, -100),
        old_logps=batch.options["old_logps"].masked_fill(outside, math.nan),
        ref_logps=batch.options["ref_logps"].masked_fill(outside, math.inf),
        token_weights=torch.ones(3, 5).masked_fill(outside, 1.0 if loss_type == "vespo" else math.nan),
    )
    assert_same(run(garbage, backend, options), run(batch, backend, options), 1e-7)
    output, grad = run(garbage, backend, options)
    assert grad[outside].abs().max() == 0
    assert output.logps[outside].abs().max() == 0


@pytest.mark.parametrize("backend", FUSED)
def test_masked_rows_are_not_read(backend):
    """Not even a NaN there is seen."""
    batch = make_batch(dtype=torch.float32)
    outside = ~batch.options["completion_mask"]
    logits = batch.logits.masked_fill(outside.unsqueeze(-1), math.nan)
    output, grad = run(batch.but(logits=logits), backend, config(beta=0.1))
    assert math.isfinite(output.loss.item())
    assert grad.isfinite().all()


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("vocabulary", [9000, 50])
def test_minus_infinity_is_probability_zero(backend, vocabulary):
    """Also where the first 5000 columns, more than a block, are all -inf."""
    batch = make_batch(vocabulary=vocabulary, dtype=torch.float32)
    banned = torch.zeros(vocabulary, dtype=torch.bool)
    banned[: vocabulary * 5 // 9] = True
    banned[-3:] = True
    ids = batch.ids % (vocabulary // 9) + vocabulary * 5 // 9
    batch = batch.but(ids=ids, logits=batch.logits.masked_fill(banned, -math.inf))
    options = config(beta=0.1, entropy_coef=0.1, temperature=0.5)
    output, grad = run(batch, backend, options)
    allowed = batch.but(logits=batch.logits[..., ~banned], ids=ids - vocabulary * 5 // 9)
    expected, expected_grad = run(allowed.to(dtype=torch.float64), "eager", options)
    assert_same((output, grad[..., ~banned]), (expected, expected_grad), 1e-5)
    assert grad[..., banned].abs().max() == 0


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_lowest_finite_logit_bans_a_token_too(backend, dtype, temperature):
    """As Hugging Face masks are written: finfo.min, whose distance to the peak passes the range of float32."""
    batch = make_batch(vocabulary=9000, dtype=dtype)
    banned = torch.arange(9000) % 9000 < 5000
    ids = batch.ids % 4000 + 5000
    options = config(beta=0.1, entropy_coef=0.1, temperature=temperature)
    results = []
    for value in (torch.finfo(dtype).min, -math.inf):
        masked = batch.but(logits=batch.logits.masked_fill(banned, value), ids=ids)
        results.append(run(masked, backend, options))
    assert results[0][1].isfinite().all()
    assert_same(*results, 1e-6)


@pytest.mark.parametrize("backend", ALL_BACKENDS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_extreme_ratio_is_never_nan(backend, loss_type):
    """Old log-probabilities that no sampler gives, and advantages of both signs and zero."""
    batch = make_batch(dtype=torch.float32)
    for old in (-1e4, 0.0):
        for level in LEVELS:
            extreme = batch.but(
                old_logps=torch.full((3, 5), old), advantages=torch.tensor([1.0, -1.0, 0.0]), ref_logps=None
            )
            output, grad = run(extreme, backend, config(loss_type, importance_sampling_level=level))
            assert not output.loss.isnan()
            assert not grad.isnan().any()


@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_a_reference_for_the_report_alone_never_reaches_the_gradient(backend):
    """An infinite KL is reported; with beta 0 it multiplies nothing."""
    batch = make_batch(dtype=torch.float32)
    far = batch.but(ref_logps=torch.full((3, 5), 200.0))
    for estimator in ("k1", "k2", "k3"):
        output, grad = run(far, backend, config(kl_estimator=estimator))
        without, without_grad = run(batch.but(ref_logps=None), backend, config())
        assert torch.equal(grad, without_grad)
        assert output.loss.item() == without.loss.item()


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("with_old", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
def test_an_impossible_target_is_reported_and_stays_in_its_row(backend, with_old, overwrite):
    batch = make_batch(dtype=torch.float32)
    logits = batch.logits.clone()
    logits[0, 0, batch.ids[0, 0]] = -math.inf
    batch = batch.but(logits=logits, ref_logps=None, **({} if with_old else {"old_logps": None}))
    output, grad = run(batch, backend, config(entropy_coef=0.1), overwrite_logits=overwrite)
    assert output.logps[0, 0] == -math.inf
    assert grad.isfinite().all()
    others = torch.ones_like(batch.ids, dtype=torch.bool)
    others[0, 0] = False
    assert output.logps.cpu()[others].isfinite().all()
    healthy = batch.but(logits=make_batch(dtype=torch.float32).logits)
    _, expected_grad = run(healthy, backend, config(entropy_coef=0.1), overwrite_logits=overwrite)
    assert torch.equal(grad[others], expected_grad[others])


@pytest.mark.parametrize("backend", FUSED)
def test_a_row_of_nothing_but_minus_infinity_stays_in_its_row(backend):
    batch = make_batch(dtype=torch.float32)
    logits = batch.logits.clone()
    logits[0, 1] = -math.inf
    output, grad = run(batch.but(logits=logits, ref_logps=None), backend, config(entropy_coef=0.1))
    assert output.logps[0, 1] == -math.inf
    assert output.entropy[0, 1] == 0
    assert grad.isfinite().all()


@pytest.mark.parametrize("backend", FUSED)
def test_a_nan_logit_is_not_hidden(backend):
    batch = make_batch(dtype=torch.float32)
    logits = batch.logits.clone()
    logits[0, 0, 3] = math.nan
    output, grad = run(batch.but(logits=logits), backend, config())
    assert output.loss.isnan()
    assert grad[0, 0].isnan().any()
    assert grad[1:].isfinite().all()


@pytest.mark.parametrize("backend", FUSED)
def test_a_near_certain_token_keeps_its_gradient(backend):
    """1 - p = 1e-9 would be 0 as a difference of float32 numbers."""
    logits = torch.zeros(1, 1, 3, device=device_of(backend))
    logits[0, 0, 1] = math.log(2e9)
    leaf = logits.requires_grad_()
    logps = token_logps(leaf * 1, torch.tensor([[1]], device=logits.device), backend=backend)
    logps.sum().backward()
    assert logps.item() == pytest.approx(-1e-9, rel=1e-5)
    assert leaf.grad[0, 0, 1].item() == pytest.approx(1e-9, rel=1e-5)


@pytest.mark.parametrize("backend", FUSED)
def test_large_logits_do_not_overflow(backend):
    batch = make_batch(dtype=torch.float32, scale=3e4)
    output, grad = run(batch, backend, config())
    assert output.logps.isfinite().all()
    assert grad.isfinite().all()


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_policy_ratio_is_exactly_one(backend, dtype):
    batch = make_batch(dtype=dtype).but(ref_logps=None)
    old = token_logps(batch.to(device_of(backend)).logits, batch.to(device_of(backend)).ids, 0.7, backend=backend)
    output, _ = run(batch.but(old_logps=old.cpu()), backend, config(temperature=0.7))
    assert (output.ratio == 1).all()
    implicit, _ = run(batch.but(old_logps=None), backend, config(temperature=0.7))
    assert (implicit.ratio == 1).all()


@pytest.mark.parametrize("backend", FUSED)
def test_advantages_per_sequence_and_per_token_agree(backend):
    batch = make_batch(dtype=torch.float32)
    expected = run(batch, backend, config())
    for advantages in (batch.advantages.unsqueeze(-1), batch.advantages.unsqueeze(-1).expand(3, 5)):
        assert_same(run(batch.but(advantages=advantages), backend, config()), expected, 0)


@pytest.mark.parametrize("backend", FUSED)
def test_micro_batches_with_the_batch_count_add_up(backend):
    batch = make_batch(batch=4, dtype=torch.float32)
    whole, whole_grad = run(batch, backend, config())
    count = batch.options["completion_mask"].sum()
    losses, grads = [], []
    for rows in (slice(0, 1), slice(1, 4)):
        part = batch.but(logits=batch.logits[rows], ids=batch.ids[rows], advantages=batch.advantages[rows])
        part = part.but(**{key: value[rows] for key, value in batch.options.items()})
        output, grad = run(part, backend, config(), num_items_in_batch=count)
        losses.append(output.loss)
        grads.append(grad)
    torch.testing.assert_close(sum(losses), whole.loss)
    torch.testing.assert_close(torch.cat(grads), whole_grad)


def test_token_logps_serves_any_loss_of_the_caller():
    """Per-row upstream gradients, such as SFT's, DPO's or PPO's."""
    batch = make_batch()
    upstream = torch.randn(3, 5, 2, dtype=torch.float64)
    gradients = []
    for backend in ("torch", "eager"):
        logits = batch.logits.clone().requires_grad_()
        values = torch.stack(token_logps(logits, batch.ids, 0.6, return_entropy=True, backend=backend), -1)
        (values * upstream).sum().backward()
        gradients.append(logits.grad)
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_everything_but_the_loss_is_detached():
    batch = make_batch()
    output, _ = run(batch, "torch", config(beta=0.1))
    assert output.loss.requires_grad
    for value in (output.logps, output.entropy, output.kl, output.ratio, *output.metrics.values()):
        assert not value.requires_grad


def test_kl_is_reported_without_being_in_the_loss():
    batch = make_batch()
    output, grad = run(batch, "torch", config())
    assert output.kl is not None and output.metrics["kl"] > 0
    without, without_grad = run(batch.but(ref_logps=None), "torch", config())
    assert without.kl is None and "kl" not in without.metrics
    assert torch.equal(grad, without_grad)


def test_cpu_memory_is_bounded_by_the_block():
    """Forward and backward of bfloat16 logits allocate blocks, not float32 copies of the whole."""
    vocabulary = 50_000
    logits = torch.randn(4, 64, vocabulary, dtype=torch.float32).to(torch.bfloat16).requires_grad_() * 1
    ids = torch.randint(vocabulary, (4, 64))
    with torch.profiler.profile(profile_memory=True) as profile:
        grpo_loss(logits, ids, torch.randn(4)).loss.backward(inputs=[logits])
    total, peak = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    assert 0 < peak < 8 * 4 * BLOCK_ELEMENTS
    assert peak < logits.numel() * 4
