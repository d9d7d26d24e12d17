"""The tiled kernel: log-probabilities and entropies of a head whose logits exist in registers only."""

import math

import pytest
import torch

from grpo_kernels import linear_token_logps, token_logps

from .helpers import KERNEL_DEVICE, needs_triton

pytestmark = needs_triton


def make(vocabulary, width=40, rows=5, dtype=torch.float32, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, width, generator=generator).mul_(scale).to(KERNEL_DEVICE, dtype)
    weight = torch.randn(vocabulary, width, generator=generator).to(KERNEL_DEVICE, dtype)
    return hidden, weight, torch.randint(vocabulary, (rows,), generator=generator).to(KERNEL_DEVICE)


def stats(hidden, weight, ids, bias=None, temperature=1.0, softcap=0.0, logit_scale=1.0, splits=None):
    from grpo_kernels.kernels.launch import HeadTransform
    from grpo_kernels.kernels.tiled import tiled_token_stats

    return tiled_token_stats(hidden, weight, bias, ids, temperature, HeadTransform(softcap, logit_scale), splits)


def exact(hidden, weight, ids, bias=None, temperature=1.0, softcap=0.0, logit_scale=1.0):
    """``(logps, entropy)`` in float64."""
    logits = hidden.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    logits = logit_scale * logits
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    temperature = temperature.double() if torch.is_tensor(temperature) else temperature
    return token_logps(logits, ids, temperature, return_entropy=True, backend="eager")


def assert_exact(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found.logps.double(), expected[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found.entropy.double(), expected[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("splits", [1, 2, None])
@pytest.mark.parametrize("vocabulary", [17, 257, 1000, 32001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_the_numbers_of_float64(dtype, vocabulary, splits):
    """Whatever the vocabulary: columns beyond it do not leak into the sum."""
    given = make(vocabulary, dtype=dtype)
    found = stats(*given, splits=splits)
    assert_exact(found, exact(*given))
    assert (found.logps <= 0).all()


@pytest.mark.parametrize("width", [8, 64, 72])
@pytest.mark.parametrize("rows", [1, 64, 65])
def test_any_number_of_rows_and_dimensions(rows, width):
    given = make(130, width, rows)
    assert_exact(stats(*given), exact(*given))


@pytest.mark.parametrize("head", [{"softcap": 3.0}, {"logit_scale": 0.3}, {"softcap": 5.0, "logit_scale": 2.0}, {}])
@pytest.mark.parametrize("splits", [1, 3])
def test_bias_soft_cap_scale_and_temperatures(head, splits):
    given = make(300)
    bias = torch.linspace(-2, 2, 300, device=KERNEL_DEVICE)
    for temperature in (0.6, torch.linspace(0.5, 1.5, 5, device=KERNEL_DEVICE)):
        options = {"bias": bias, "temperature": temperature, **head}
        assert_exact(stats(*given, **options, splits=splits), exact(*given, **options))


@pytest.mark.parametrize("certainty", [24.0, 48.0])
@pytest.mark.parametrize("splits", [1, 3])
def test_certain_tokens_keep_the_digits_of_what_they_miss(certainty, splits):
    """Down to 1e-18, where 1 - p is 1 - 1 even in float64."""
    hidden, weight, ids = make(300, scale=0.3)
    weight[ids] = certainty * hidden / hidden.square().sum(-1, keepdim=True)
    found = stats(hidden, weight, ids, splits=splits)
    logits = hidden.double() @ weight.double().T
    rest = (logits - logits.gather(1, ids[:, None])).exp().scatter(1, ids[:, None], 0.0).sum(-1)
    assert (rest < 1e-6).all()
    torch.testing.assert_close(found.logps.double(), -torch.log1p(rest), rtol=1e-4, atol=0)
    torch.testing.assert_close(found.miss.double(), rest / (1 + rest), rtol=1e-4, atol=0)


@pytest.mark.parametrize("splits", [1, 3])
def test_banned_tokens(splits):
    """-inf is probability 0: a whole first tile of it, and a target."""
    hidden, weight, _ = make(300)
    bias = torch.zeros(300, device=KERNEL_DEVICE)
    bias[:256] = -math.inf
    ids = torch.tensor([256, 299, 280, 0, 270], device=KERNEL_DEVICE)
    found = stats(hidden, weight, ids, bias=bias, splits=splits)
    logps, entropy = exact(hidden, weight[256:], (ids - 256).clamp(min=0))
    logps[3] = -math.inf
    assert_exact(found, (logps, entropy))
    assert found.miss[3] == 0


@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_of_banned_tokens_is_finite(splits):
    hidden, weight, ids = make(300)
    found = stats(hidden, weight, ids, bias=torch.full((300,), -math.inf, device=KERNEL_DEVICE), splits=splits)
    for values, expected in zip(found, (-math.inf, 0.0, 0.0, 1.0, 0.0), strict=True):
        assert (values == expected).all()


@pytest.mark.parametrize("target", [-1, 300, 384])
def test_targets_outside_the_vocabulary_give_nan(target):
    hidden, weight, ids = make(300)
    expected = stats(hidden, weight, ids)
    ids = ids.clone()
    ids[2] = target
    found = stats(hidden, weight, ids)
    assert found.logps.isnan().tolist() == [False, False, True, False, False]
    assert torch.equal(found.logps[:2], expected.logps[:2])


def test_statistics_are_those_of_the_row_kernels():
    from grpo_kernels.kernels.launch import HeadTransform, token_stats

    hidden, weight, ids = make(300)
    temperatures = torch.linspace(0.5, 1.5, 5, device=KERNEL_DEVICE)
    found = stats(hidden, weight, ids, temperature=temperatures, logit_scale=0.3)
    logits = (hidden @ weight.T).unsqueeze(0)
    expected = token_stats(logits, ids, torch.ones_like(ids, dtype=torch.bool), temperatures, HeadTransform(0.0, 0.3))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("which", ["hidden", "weight"])
def test_rows_far_apart(which):
    """A tensor whose last row begins beyond 2^31 elements. Only the pages touched get memory."""
    far, rows, width = 2**31 + 4096, 3, 16
    memory = torch.empty(far + width, dtype=torch.float16, device=KERNEL_DEVICE)
    spread = memory.as_strided((rows, width), (far // 2, 1))
    hidden, weight, ids = make(rows, width, rows, dtype=torch.float16)
    spread.copy_(hidden if which == "hidden" else weight)
    given = (spread, weight, ids) if which == "hidden" else (hidden, spread, ids)
    assert_exact(stats(*given), exact(hidden, weight, ids))


def test_serves_linear_token_logps():
    hidden, weight, ids = (tensor[None] if tensor.dim() == 2 else tensor for tensor in make(300, rows=6))
    weight, ids = weight[0], ids.view(1, 6)
    mask = torch.tensor([[1, 1, 0, 1, 0, 1]], device=KERNEL_DEVICE)
    options = {"mask": mask, "return_entropy": True, "backend": "triton"}
    for temperature in (0.7, torch.full((1, 6), 0.7, device=KERNEL_DEVICE)):
        tiled = linear_token_logps(hidden, weight, ids, temperature, tiled=True, **options)
        chunked = linear_token_logps(hidden, weight, ids, temperature, **options)
        for one, other in zip(tiled, chunked, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
            assert (one[mask == 0] == 0).all()


@pytest.mark.skipif(KERNEL_DEVICE != "cpu", reason="on a GPU it is measured")
@pytest.mark.parametrize(
    ("dtype", "width", "is_tiled"),
    [(torch.float16, 2048, True), (torch.float16, 2049, False), (torch.float32, 64, False)],
)
def test_the_rule_where_nothing_can_be_measured(dtype, width, is_tiled):
    from grpo_kernels.kernels.tiled import prefers_tiled

    hidden, weight = torch.empty(1, width, dtype=dtype), torch.empty(3, width, dtype=dtype)
    assert prefers_tiled(hidden, weight, lambda rows: None) is is_tiled


@pytest.mark.skipif(KERNEL_DEVICE != "cuda", reason="needs a GPU")
def test_the_faster_way_is_measured_once():
    from grpo_kernels.kernels.tiled import prefers_tiled

    hidden, weight, _ = make(5000, width=256, rows=512, dtype=torch.bfloat16)
    calls = []
    answers = [prefers_tiled(hidden, weight, calls.append) for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(calls) == 4  # one to compile, three to time


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tiled": True, "backend": "torch"}, "backend is torch"),
        ({"tiled": True, "backend": "triton", "round_logits": True}, "round_logits"),
        ({"tiled": 1.5}, "tiled is 1.5"),
    ],
)
def test_refused_by_name(options, words):
    hidden, weight, ids = make(30)
    with pytest.raises((TypeError, ValueError), match=words):
        linear_token_logps(hidden, weight, ids, **options)


def test_a_gradient_is_refused_or_goes_the_other_way():
    hidden, weight, ids = make(30)
    hidden.requires_grad_()
    with pytest.raises(ValueError, match="a gradient is needed"):
        linear_token_logps(hidden, weight, ids, tiled=True, backend="triton")
    linear_token_logps(hidden, weight, ids, tiled=None, backend="triton").sum().backward()
    assert hidden.grad is not None


def test_a_run_compiles_it_once(monkeypatch):
    """Other numbers of rows and other temperatures ask Triton for the same variant."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    from grpo_kernels.kernels import tiled

    target, variants = make_backend(GPUTarget("cuda", 90, 32)), set()

    def record(kernel, programs, arguments, **constants):
        function = kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn, **kernel.kwargs)
        bind = create_function_from_signature(function.signature, function.params, target)
        _, specialization, options = bind(*arguments, **constants)
        variants.add((str(specialization), str(options)))

    monkeypatch.setattr(tiled, "launch", record)
    for rows in (1, 2, 15, 16, 17, 64, 200):
        stats(*make(300, rows=rows), temperature=0.5 + rows / 100)
        stats(*make(300, rows=rows), temperature=torch.ones(rows, device=KERNEL_DEVICE))
    assert len(variants) == 1
