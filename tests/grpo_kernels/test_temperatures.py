"""A temperature for each sequence: the numbers of logits divided by it beforehand."""

import pytest
import torch

from grpo_kernels import grpo_loss, linear_grpo_loss, linear_token_logps, token_logps

from .helpers import ALL_BACKENDS, FUSED, LOSS_TYPES, assert_same, config, device_of, make_batch, run

TEMPERATURES = torch.tensor([0.5, 1.0, 1.7], dtype=torch.float64)


def divided(batch, options):
    """``run`` of logits that the caller divided, at temperature 1, in float64."""
    leaf = batch.logits.double().clone().requires_grad_()
    output = grpo_loss(
        leaf / TEMPERATURES[:, None, None],
        batch.ids,
        batch.advantages,
        **batch.options,
        backend="eager",
        config=options,
    )
    output.loss.backward()
    return output, leaf.grad


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_the_loss_of_divided_logits(backend, loss_type, level):
    dtype, tolerance = (torch.float32, 2e-5) if backend == "triton" else (torch.float64, 1e-10)
    options = {"importance_sampling_level": level, "beta": 0.1, "entropy_coef": 0.05}
    batch = make_batch(dtype=dtype)
    actual = run(
        batch, backend, config(loss_type, **options, temperature=0.01), temperatures=TEMPERATURES.to(device_of(backend))
    )
    assert_same(actual, divided(batch, config(loss_type, **options)), tolerance)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("backend", FUSED)
def test_equal_temperatures_are_one_temperature(backend, overwrite):
    """Bit for bit: the sampler's way and the trainer's way may differ in nothing."""
    batch = make_batch(dtype=torch.float32)
    one = run(batch, backend, config(temperature=0.7), overwrite_logits=overwrite)
    each = run(
        batch, backend, config(), overwrite_logits=overwrite, temperatures=torch.full((3, 1), 0.7, dtype=torch.float64,
        device=device_of(backend)),
    )  # fmt: skip
    assert_same(each, one, 1e-6 if backend == "triton" else 0.0)


@pytest.mark.parametrize("backend", FUSED)
def test_packed_sequences(backend):
    device = device_of(backend)
    batch = make_batch(dtype=torch.float32).to(device)
    lengths = torch.tensor([5, 2, 4])
    mask = (torch.arange(5) < lengths[:, None]).to(device)
    temperatures = TEMPERATURES.to(device)
    options = {name: batch.options[name] for name in ("old_logps", "ref_logps")}
    padded = grpo_loss(
        batch.logits.clone(), batch.ids, batch.advantages, completion_mask=mask, temperatures=temperatures,
        backend=backend, config=config(beta=0.1), **options,
    )  # fmt: skip
    packed = grpo_loss(
        batch.logits[mask], batch.ids[mask], batch.advantages, temperatures=temperatures, backend=backend,
        cu_seqlens=torch.tensor([0, 5, 7, 11], device=device), config=config(beta=0.1),
        **{name: values[mask] for name, values in options.items()},
    )  # fmt: skip
    torch.testing.assert_close(packed.loss, padded.loss)
    torch.testing.assert_close(packed.logps, padded.logps[mask])


@pytest.mark.parametrize("head", [{}, {"softcap": 3.0, "logit_scale": 0.5}, {"logit_scale": 2.0}])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("backend", FUSED)
def test_from_hidden_states(backend, level, head):
    dtype, tolerance = (torch.float32, 2e-5) if backend == "triton" else (torch.float64, 1e-10)
    device = device_of(backend)
    batch = make_batch(vocabulary=29, dtype=dtype).to(device)
    hidden = torch.randn(3, 5, 8, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(29, 8, dtype=dtype, device=device)
    options = config(importance_sampling_level=level, entropy_coef=0.05)
    given = (batch.ids, batch.advantages)
    temperatures = TEMPERATURES.to(device)

    output = linear_grpo_loss(
        hidden, weight, *given, **batch.options, **head, temperatures=temperatures, chunk_bytes=29 * 4 * 4,
        backend=backend, config=options,
    )  # fmt: skip
    (grad,) = torch.autograd.grad(output.loss, hidden)

    logits = head.get("logit_scale", 1.0) * (hidden.double() @ weight.double().T)
    if "softcap" in head:
        logits = head["softcap"] * torch.tanh(logits / head["softcap"])
    expected = grpo_loss(
        logits, *given, **batch.options, temperatures=temperatures, backend="eager", config=options
    )  # fmt: skip
    (expected_grad,) = torch.autograd.grad(expected.loss, hidden)
    torch.testing.assert_close(output.loss.double(), expected.loss, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(output.logps.double(), expected.logps, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(grad, expected_grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 5)])
@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_log_probabilities(backend, shape):
    """Per sequence or per token; packed ones per token."""
    device = device_of(backend)
    batch = make_batch(dtype=torch.float32).to(device)
    given = torch.rand(shape, device=device) + 0.5
    each = given[:, None] if given.dim() == 1 else given
    expected = torch.log_softmax(batch.logits / each[..., None], -1).gather(-1, batch.ids[..., None]).squeeze(-1)

    torch.testing.assert_close(token_logps(batch.logits, batch.ids, given, backend=backend), expected)
    flat = each.expand(3, 5).flatten()
    packed = token_logps(batch.logits.flatten(0, 1), batch.ids.flatten(), flat, backend=backend)
    torch.testing.assert_close(packed, expected.flatten())
    if backend != "eager":
        identity = torch.eye(37, device=device)
        torch.testing.assert_close(
            linear_token_logps(batch.logits, identity, batch.ids, given, backend=backend), expected
        )


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("backend", FUSED)
def test_gradients_of_log_probabilities_from_hidden_states(backend, with_entropy):
    device = device_of(backend)
    hidden = torch.randn(3, 5, 8, device=device, requires_grad=True)
    weight, ids = torch.randn(29, 8, device=device), torch.randint(29, (3, 5), device=device)
    temperatures = TEMPERATURES.float().to(device)

    def loss(logps, entropy):
        return (logps * torch.arange(5, device=device)).sum() + (entropy.sum() if with_entropy else 0.0)

    fused = linear_token_logps(
        hidden, weight, ids, temperatures, return_entropy=True, chunk_bytes=29 * 16, backend=backend
    ) if with_entropy else (linear_token_logps(hidden, weight, ids, temperatures, backend=backend), None)  # fmt: skip
    (grad,) = torch.autograd.grad(loss(*fused), hidden)
    logits = hidden @ weight.T
    plain = token_logps(logits, ids, temperatures, return_entropy=True, backend="eager")
    (expected,) = torch.autograd.grad(loss(*plain), hidden)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


def test_new_temperatures_do_not_compile_again():
    torch.compiler.reset()
    torch._dynamo.config.error_on_recompile = True
    try:
        batch = make_batch(dtype=torch.float32)

        @torch.compile(fullgraph=True, backend="aot_eager")
        def loss(logits, temperatures):
            return grpo_loss(
                logits * 1, batch.ids, batch.advantages, temperatures=temperatures, config=config(), **batch.options
            ).loss

        for factor in (1.0, 2.0):
            leaf = batch.logits.clone().requires_grad_()
            value = loss(leaf, TEMPERATURES * factor)
            value.backward()
            expected, grad = run(batch, "torch", config(), temperatures=TEMPERATURES * factor)
            torch.testing.assert_close(value, expected.loss)
            torch.testing.assert_close(leaf.grad, grad)
    finally:
        torch._dynamo.config.error_on_recompile = False


@pytest.mark.parametrize(
    ("temperatures", "words"),
    [
        (torch.tensor([1.0, 0.0, 1.0]), ["temperatures holds 0.0", "> 0"]),
        (torch.tensor([1.0, float("nan"), 1.0]), ["temperatures holds nan"]),
        (torch.tensor([1.0, 1.0]), ["temperatures has shape [2]", "[B] or [B, 1]"]),
        (torch.ones(3, 5), ["temperatures has shape [3, 5]"]),
    ],
)
def test_refused(temperatures, words):
    batch = make_batch()
    calls = (
        lambda: grpo_loss(batch.logits, batch.ids, batch.advantages, temperatures=temperatures),
        lambda: linear_grpo_loss(batch.logits, torch.eye(37).double(), batch.ids, batch.advantages,
                                 temperatures=temperatures),
    )  # fmt: skip
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        assert all(word in str(caught.value) for word in words), caught.value
