"""The loss from hidden states: the numbers of the loss on logits, in fewer operations and less memory."""

import dataclasses
import gc
import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from grpo_kernels import grpo_loss, linear_grpo_loss, linear_token_logps, ops, token_logps, top_entropy_mask
from grpo_kernels.linear import chunk_rows

from .helpers import FUSED, LOSS_TYPES, config, device_of, make_batch

VOCABULARY, WIDTH = 37, 8
SMALL_CHUNKS = 4 * 4 * VOCABULARY  # four rows of float32 logits


@dataclasses.dataclass
class Model:
    """A head and the hidden states before it, each a leaf."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    softcap: float | None = None
    logit_scale: float = 1.0

    @property
    def leaves(self):
        return [
            tensor for tensor in (self.hidden, self.weight, self.bias) if tensor is not None and tensor.requires_grad
        ]

    @property
    def head(self):
        return {"bias": self.bias, "softcap": self.softcap, "logit_scale": self.logit_scale}

    def logits(self):
        logits = self.hidden @ self.weight.T
        logits = (logits if self.bias is None else logits + self.bias) * self.logit_scale
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def make_model(batch=3, length=5, trainable=False, bias=True, dtype=torch.float64, device="cpu", seed=0, **head):
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape, requires_grad):
        tensor = torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, dtype)
        return tensor.requires_grad_(requires_grad)

    return Model(
        leaf(batch, length, WIDTH, requires_grad=True),
        leaf(VOCABULARY, WIDTH, requires_grad=trainable),
        leaf(VOCABULARY, requires_grad=trainable) if bias else None,
        **head,
    )


HEADS = {
    "frozen": {"bias": False},
    "frozen, bias": {"bias": True},
    "trainable": {"trainable": True},
    "soft cap": {"trainable": True, "softcap": 3.0},
    "soft cap and scale": {"trainable": True, "softcap": 3.0, "logit_scale": 0.7},
    "scale": {"trainable": True, "logit_scale": 0.25},
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@pytest.mark.parametrize("backend", FUSED)
def test_equals_the_loss_on_logits(backend, loss_type, head):
    dtype, tolerance = (torch.float32, 3e-5) if backend == "triton" else (torch.float64, 1e-11)
    model = make_model(**HEADS[head], dtype=dtype, device=device_of(backend))
    batch = make_batch(vocabulary=VOCABULARY, dtype=dtype).to(device_of(backend))
    with torch.no_grad():
        logps = token_logps(model.logits().double(), batch.ids, 0.8, backend="eager")
        noise = batch.options["old_logps"] - batch.options["ref_logps"]
        batch = batch.but(old_logps=logps + noise, ref_logps=logps - noise)
    for level, beta, entropy_coef in itertools.product(("token", "sequence"), (0.0, 0.1), (0.0, 0.05)):
        options = config(
            loss_type, importance_sampling_level=level, beta=beta, entropy_coef=entropy_coef, temperature=0.8
        )
        expected = grpo_loss(
            model.logits(), batch.ids, batch.advantages, **batch.options, backend="eager", config=options
        )
        actual = linear_grpo_loss(
            model.hidden,
            model.weight,
            batch.ids,
            batch.advantages,
            **model.head,
            **batch.options,
            chunk_bytes=SMALL_CHUNKS,
            backend=backend,
            config=options,
        )
        for name in ("loss", "logps", "entropy", "kl", "ratio"):
            one, other = getattr(actual, name), getattr(expected, name)
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=f"{name} {level} {beta}")
        grads = (torch.autograd.grad(output.loss * 1.5, model.leaves) for output in (actual, expected))
        for one, other in zip(*grads, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert actual.metrics.pop("metric_tokens") == batch.options["completion_mask"].sum()
        assert set(actual.metrics) == set(expected.metrics)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("return_entropy", [False, True])
@pytest.mark.parametrize("backend", FUSED)
def test_log_probabilities_serve_any_loss(backend, return_entropy, head):
    dtype, tolerance = (torch.float32, 3e-5) if backend == "triton" else (torch.float64, 1e-11)
    model = make_model(**HEADS[head], dtype=dtype, device=device_of(backend))
    ids = torch.arange(15, device=device_of(backend)).view(3, 5)
    upstream = torch.linspace(-1, 1, 15, dtype=dtype, device=device_of(backend)).view(3, 5)
    expected = token_logps(model.logits(), ids, 0.7, return_entropy, backend="eager")
    actual = linear_token_logps(
        model.hidden, model.weight, ids, 0.7, return_entropy, **model.head, chunk_bytes=SMALL_CHUNKS, backend=backend
    )
    grads = []
    for values in (actual, expected):
        logps, entropy = values if return_entropy else (values, torch.zeros_like(values))
        grads.append(
            (logps, entropy, *torch.autograd.grad((logps * upstream + entropy * upstream**2).sum(), model.leaves))
        )
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_gradcheck_in_float64():
    model = make_model(batch=2, length=3, trainable=True, softcap=3.0)
    batch = make_batch(2, 3, VOCABULARY)

    def loss(hidden, weight, bias):
        return linear_grpo_loss(
            hidden,
            weight,
            batch.ids,
            batch.advantages,
            bias=bias,
            softcap=3.0,
            **batch.options,
            config=config(beta=0.1),
        ).loss

    assert torch.autograd.gradcheck(loss, model.leaves)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_rows_that_cannot_have_a_gradient_are_left_out_exactly(loss_type):
    model, batch = make_model(), make_batch(vocabulary=VOCABULARY)
    batch = batch.but(advantages=torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64))
    results = []
    for all_metrics in (True, False):
        output = linear_grpo_loss(
            model.hidden,
            model.weight,
            batch.ids,
            batch.advantages,
            **batch.options,
            all_metrics=all_metrics,
            config=config(loss_type),
        )
        results.append((output, torch.autograd.grad(output.loss, model.hidden)[0]))
    (every, every_grad), (needed, needed_grad) = results
    assert torch.equal(every_grad == 0, needed_grad == 0)
    # A product of another number of rows may add up in another order.
    torch.testing.assert_close(every_grad, needed_grad, rtol=1e-12, atol=1e-18)
    assert needed.loss.item() == pytest.approx(every.loss.item(), abs=1e-15)
    counts = batch.options["completion_mask"].sum(-1)
    assert every.metrics["metric_tokens"] == counts.sum()
    assert needed.metrics["metric_tokens"] == counts[1:].sum()
    assert needed.metrics["entropy"].item() == pytest.approx(every.entropy[1:].sum().item() / counts[1:].sum().item())


def flops(function) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("dead_groups", [False, True])
def test_operations(trainable, dead_groups):
    """2 (N needed + N with a gradient) V D, and 2 N V D more for a trainable head."""
    model = make_model(batch=4, length=16, trainable=trainable, bias=False)
    batch = make_batch(4, 16, VOCABULARY)
    advantages = torch.tensor([1.0, -1.0, 0.0, 0.0]) if dead_groups else torch.tensor([1.0, -1.0, 1.0, 2.0])
    mask = batch.options["completion_mask"]
    needed = mask[advantages != 0].sum().item()
    unit = 2 * VOCABULARY * WIDTH

    def step(**options):
        return linear_grpo_loss(
            model.hidden, model.weight, batch.ids, advantages, completion_mask=mask, **options, config=config()
        )

    assert flops(lambda: step().loss.backward()) == unit * needed * (3 if trainable else 2)
    with torch.no_grad():
        assert flops(step) == unit * needed
    # Clipped tokens: known to have no gradient once the log-probabilities are.
    output = step(old_logps=step(all_metrics=True).logps.detach() - 1.0)
    clipped = mask & (advantages > 0).unsqueeze(-1)
    kept = needed - clipped.sum().item()
    total = flops(lambda: step(old_logps=output.logps.detach() - 1.0).loss.backward())
    assert total == unit * (needed + kept * (2 if trainable else 1))


def test_operations_of_the_most_uncertain_fifth():
    """Entropies cost one product of every token, training on the top fifth of them two products of a fifth."""
    model, batch = make_model(batch=4, length=25, bias=False), make_batch(4, 25, VOCABULARY)
    unit = 2 * VOCABULARY * WIDTH

    def step():
        with torch.no_grad():
            _, entropy = linear_token_logps(model.hidden, model.weight, batch.ids, return_entropy=True)
        chosen = top_entropy_mask(entropy, torch.ones_like(entropy), 0.2)
        linear_grpo_loss(
            model.hidden, model.weight, batch.ids, batch.advantages, token_weights=chosen, config=config()
        ).loss.backward()

    assert flops(step) == unit * (100 + 2 * 20)


def test_log_probabilities_of_a_frozen_head_are_computed_once():
    model, ids = make_model(bias=False), torch.zeros(3, 5, dtype=torch.int64)
    total = flops(lambda: linear_token_logps(model.hidden, model.weight, ids).sum().backward())
    assert total == 2 * 2 * 15 * VOCABULARY * WIDTH


def peak_bytes(function) -> int:
    """The most memory that ``function`` held at a time, over what was there before."""
    gc.collect()
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    total, peak = 0, 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak


def test_memory_grows_with_the_hidden_states_alone():
    """8 times the tokens in chunks of one size: the growth is a few copies of [N, D], and nothing of [N, V]."""
    vocabulary, width, chunk_bytes = 5000, 16, 1 << 20
    weight = torch.randn(vocabulary, width)

    def step(tokens):
        hidden = torch.randn(1, tokens, width, requires_grad=True)
        ids = torch.randint(vocabulary, (1, tokens))
        return peak_bytes(
            lambda: linear_grpo_loss(hidden, weight, ids, torch.ones(1), chunk_bytes=chunk_bytes).loss.backward()
        )

    few, many = 1000, 8000
    growth = step(many) - step(few)
    assert growth < (many - few) * 4 * (3 * width + 40)
    assert step(many) < many * vocabulary * 4 / 8


@pytest.mark.parametrize("backend", FUSED)
def test_half_precision_states_and_head(backend):
    """Logits are float32 from the product on: the loss is that of float32 arithmetic on the bfloat16 numbers."""
    model = make_model(dtype=torch.bfloat16, trainable=True, device=device_of(backend))
    exact = Model(*(tensor.detach().double().requires_grad_() for tensor in (model.hidden, model.weight, model.bias)))
    batch = make_batch(vocabulary=VOCABULARY).to(device_of(backend))
    actual = linear_grpo_loss(
        model.hidden, model.weight, batch.ids, batch.advantages, bias=model.bias, backend=backend, config=config()
    )
    expected = grpo_loss(exact.logits(), batch.ids, batch.advantages, backend="eager", config=config())
    torch.testing.assert_close(actual.logps.double(), expected.logps, rtol=1e-5, atol=1e-5)
    grads = (torch.autograd.grad(out.loss, m.leaves) for out, m in ((actual, model), (expected, exact)))
    for one, other in zip(*grads, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", FUSED)
def test_the_gradient_may_be_written_in_half_precision(backend, dtype, entropy_coef):
    """As if it were rounded afterwards (Triton's interpreter cuts digits off), for losses and for log-probabilities."""
    device = device_of(backend)
    operations, options = ops.implementation(backend), config(entropy_coef=entropy_coef)
    logits, ids = torch.randn(4, 200, device=device), torch.randint(200, (4,), device=device)
    rows = torch.rand(4, device=device)
    vectors = (rows - 0.5, None, None, None, rows, rows if entropy_coef else None, None)

    def grads(out):
        loss_values, logp_values = logits.clone(), logits.clone()
        one, other = (loss_values, logp_values) if out is None else (torch.empty_like(logits, dtype=out) for _ in "12")
        operations.fused_rows_(loss_values, ids, *vectors, options, 5.0, 2.0, one)
        operations.logp_rows_(logp_values, ids, rows, vectors[5], 0.7, 5.0, 2.0, other)
        return one, other

    for rounded, exact in zip(grads(dtype), grads(None), strict=True):
        assert rounded.dtype == dtype
        torch.testing.assert_close(rounded, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("backend", FUSED)
def test_rounded_logits_are_those_of_the_model(backend):
    """An option: statistics of the half-precision logits that a model's own head would give."""
    model = make_model(dtype=torch.bfloat16, bias=False, device=device_of(backend))
    batch = make_batch(vocabulary=VOCABULARY).to(device_of(backend))
    given = (model.hidden, model.weight, batch.ids)
    expected = token_logps(model.hidden @ model.weight.T, batch.ids, backend="torch")
    rounded = linear_token_logps(*given, round_logits=True, backend=backend)
    torch.testing.assert_close(rounded, expected, rtol=0, atol=1e-5)
    assert (linear_token_logps(*given, backend=backend) - expected).abs().max() > 1e-3

    def loss(**options):
        return linear_grpo_loss(
            *given, batch.advantages, chunk_bytes=SMALL_CHUNKS, backend=backend, config=config(), **options
        ).loss

    grads = [torch.autograd.grad(loss(round_logits=choice), model.hidden)[0].double() for choice in (True, False)]
    torch.testing.assert_close(*grads, rtol=5e-2, atol=5e-3)


def test_rounded_logits_take_half_the_memory():
    hidden = torch.empty(1, 8, dtype=torch.bfloat16)
    exact, rounded = (chunk_rows(hidden, 1000, True, 1 << 20, choice) for choice in (False, True))
    assert (exact, rounded) == (262, 524)


@pytest.mark.parametrize("start", ["hidden states", "logits"])
@pytest.mark.parametrize("backend", FUSED)
def test_float16_gradients_of_one_token_among_a_million_survive(backend, start):
    """They are computed before the loss scaler's factor arrives: 1e-6 times a probability is below float16's range."""
    model = make_model(dtype=torch.float16, bias=False, device=device_of(backend))
    exact = Model(*(tensor.detach().double().requires_grad_() for tensor in (model.hidden, model.weight)), None)
    batch = make_batch(vocabulary=VOCABULARY).to(device_of(backend))
    given, options = (batch.ids, batch.advantages), {"num_items_in_batch": 1e6, "config": config(entropy_coef=1e-6)}

    def scaled_grad(loss, hidden):
        return torch.autograd.grad(loss * 2.0**16, hidden)[0].double()

    if start == "logits":
        loss = grpo_loss(model.logits(), *given, overwrite_logits=True, backend=backend, **options).loss
    else:
        loss = linear_grpo_loss(model.hidden, model.weight, *given, backend=backend, **options).loss
    expected_loss = grpo_loss(exact.logits(), *given, backend="eager", **options).loss
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-3, atol=1e-8)
    expected = scaled_grad(expected_loss, exact.hidden)
    torch.testing.assert_close(scaled_grad(loss, model.hidden), expected, rtol=5e-3, atol=expected.abs().max() * 5e-3)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_states_have_ratio_one_and_no_kl(backend, dtype):
    """Policy, old and reference passes go the same way, in chunks of any size."""
    model = make_model(dtype=dtype, device=device_of(backend))
    batch = make_batch(vocabulary=VOCABULARY).to(device_of(backend))
    with torch.no_grad():
        logps = linear_token_logps(model.hidden, model.weight, batch.ids, 0.9, backend=backend)
    output = linear_grpo_loss(
        model.hidden,
        model.weight,
        batch.ids,
        batch.advantages,
        old_logps=logps,
        ref_logps=logps,
        backend=backend,
        config=config(beta=0.1, temperature=0.9),
    )
    assert (output.ratio == 1).all()
    assert (output.kl == 0).all()


@pytest.mark.parametrize("loss_type", ["dapo", "vespo"])
def test_the_reference_may_come_as_hidden_states(loss_type):
    model, reference = make_model(trainable=True), make_model(seed=1)
    batch = make_batch(vocabulary=VOCABULARY)
    logits = reference.hidden.detach() @ model.weight.T.detach() + model.bias.detach()
    ref_logps = token_logps(logits, batch.ids, 0.9, backend="eager")
    results = []
    for source in ({"ref_logps": ref_logps}, {"ref_logps": None, "ref_hidden": reference.hidden}):
        options = {**batch.options, **source}
        output = linear_grpo_loss(
            model.hidden,
            model.weight,
            batch.ids,
            batch.advantages,
            bias=model.bias,
            **options,
            config=config(loss_type, beta=0.1, temperature=0.9),
        )
        results.append((output.loss, output.kl, *torch.autograd.grad(output.loss, model.leaves)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("loss_type", ["dapo", "vespo"])
@pytest.mark.parametrize("trainable", [False, True])
def test_compiled_in_one_graph(loss_type, trainable):
    torch.compiler.reset()
    model = make_model(dtype=torch.float32, trainable=trainable)
    batch = make_batch(vocabulary=VOCABULARY, dtype=torch.float32)

    def loss(hidden):
        return linear_grpo_loss(
            hidden * 1, model.weight, batch.ids, batch.advantages, bias=model.bias, config=config(loss_type)
        ).loss

    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        value = function(model.hidden)
        results.append((value, *torch.autograd.grad(value, model.leaves)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_a_fully_masked_batch(loss_type):
    model, batch = make_model(trainable=True), make_batch(vocabulary=VOCABULARY)
    output = linear_grpo_loss(
        model.hidden,
        model.weight,
        batch.ids,
        batch.advantages,
        bias=model.bias,
        completion_mask=torch.zeros(3, 5),
        config=config(loss_type),
    )
    assert output.loss.item() == 0
    assert all(grad.abs().max() == 0 for grad in torch.autograd.grad(output.loss, model.leaves))
    assert all(value.isfinite() for value in output.metrics.values())


@pytest.mark.parametrize("vocabulary", [257, 1000, 32001, 50257])
@pytest.mark.parametrize("backend", FUSED)
def test_padded_columns_do_not_leak_into_the_sum(backend, vocabulary):
    weight = torch.full((vocabulary, 4), -50.0, device=device_of(backend))
    weight[3] = 50.0
    hidden = torch.ones(1, 2, 4, device=device_of(backend))
    logps = linear_token_logps(hidden, weight, torch.full((1, 2), 3, device=hidden.device), backend=backend)
    assert (logps <= 0).all()
    assert logps.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"weight": torch.zeros(37, 9)}, ValueError, ["weight", "[37, 9]", "8"]),
        ({"weight": torch.zeros(0, 8)}, ValueError, ["weight", "[0, 8]"]),
        ({"weight": torch.zeros(37, 8, dtype=torch.bfloat16)}, TypeError, ["weight", "bfloat16", "float32"]),
        ({"bias": torch.zeros(36)}, ValueError, ["bias", "[36]", "[37]"]),
        ({"softcap": 0.0}, ValueError, ["softcap", "0.0", "> 0"]),
        ({"logit_scale": -1.0}, ValueError, ["logit_scale", "-1.0", "> 0"]),
        ({"chunk_bytes": 0}, ValueError, ["chunk_bytes", "0", ">= 1"]),
        ({"hidden": torch.zeros(3, 8)}, ValueError, ["hidden", "[3, 8]", "[B, T, D]"]),
        ({"backend": "eager"}, ValueError, ["backend", "eager", "torch"]),
        ({"ref_hidden": torch.zeros(3, 5, 9)}, ValueError, ["ref_hidden", "[3, 5, 9]", "[3, 5, 8]"]),
        (
            {"ref_hidden": torch.zeros(3, 5, 8), "ref_logps": torch.zeros(3, 5)},
            ValueError,
            ["ref_logps", "ref_hidden", "one of them"],
        ),
    ],
)
def test_bad_input_is_refused_by_name(changes, error, words):
    arguments = {
        "hidden": torch.zeros(3, 5, 8),
        "weight": torch.zeros(37, 8),
        "completion_ids": torch.zeros(3, 5, dtype=torch.int64),
        "advantages": torch.zeros(3),
    }
    with pytest.raises(error) as caught:
        linear_grpo_loss(**(arguments | changes))
    for word in words:
        assert word in str(caught.value)
