"""What the kernels move, address and specialise on, seen in Triton's interpreter and launch machinery."""

import contextlib

import pytest
import torch

from grpo_kernels import GRPOLossConfig, grpo_loss, token_logps

from .helpers import KERNEL_DEVICE, make_batch, needs_triton

pytestmark = needs_triton
interpreted = pytest.mark.skipif(KERNEL_DEVICE != "cpu", reason="counts what the interpreter does; a GPU is there")


@contextlib.contextmanager
def counted_bytes(monkeypatch, tensor):
    """Bytes loaded from and stored to the memory of ``tensor`` by kernels in the interpreter."""
    from triton.runtime.interpreter import InterpreterBuilder

    counts = {"loaded": 0, "stored": 0}
    first = tensor.untyped_storage().data_ptr()
    last = first + tensor.untyped_storage().nbytes()

    def count(kind, pointers, mask):
        inside = mask.data & (pointers.data >= first) & (pointers.data < last)
        counts[kind] += int(inside.sum()) * tensor.element_size()

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counting_load(self, pointers, mask, *rest):
        count("loaded", pointers, mask)
        return load(self, pointers, mask, *rest)

    def counting_store(self, pointers, value, mask, *rest):
        count("stored", pointers, mask)
        return store(self, pointers, value, mask, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_load", counting_load)
        patch.setattr(InterpreterBuilder, "create_masked_store", counting_store)
        yield counts


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_moved(monkeypatch, dtype):
    """Forward reads the logits once; the gradient reads them once more and writes them once."""
    batch = make_batch(2, 3, 10_000, dtype=dtype)
    size = batch.logits.numel() * batch.logits.element_size()
    targets = batch.ids.numel() * batch.logits.element_size()  # one more load per row: the target's logit
    options = {"backend": "triton", "config": GRPOLossConfig(entropy_coef=0.1)}

    logits = batch.logits.clone()
    with counted_bytes(monkeypatch, logits) as counts:
        token_logps(logits, batch.ids, backend="triton")
    assert counts == {"loaded": size + targets, "stored": 0}

    logits = batch.logits.clone().requires_grad_() * 1
    with counted_bytes(monkeypatch, logits) as counts:
        loss = grpo_loss(logits, batch.ids, batch.advantages, **options).loss
    assert counts == {"loaded": size + targets, "stored": 0}
    with counted_bytes(monkeypatch, logits) as counts:
        loss.backward()
    assert counts == {"loaded": size, "stored": size}

    logits = batch.logits.clone().requires_grad_() * 1
    with counted_bytes(monkeypatch, logits) as counts:
        grpo_loss(logits, batch.ids, batch.advantages, overwrite_logits=True, **options).loss.backward()
    assert counts == {"loaded": 2 * size + targets, "stored": size}


@interpreted
def test_rows_without_gradient_cost_no_reads(monkeypatch):
    """Masked rows are never read; rows of zero coefficient are not read for their gradient, only written."""
    batch = make_batch(2, 4, 10_000, dtype=torch.float32)
    row = 10_000 * 4
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    advantages = torch.tensor([0.0, 1.0])
    logits = batch.logits.clone().requires_grad_() * 1
    with counted_bytes(monkeypatch, logits) as counts:
        loss = grpo_loss(logits, batch.ids, advantages, completion_mask=mask, backend="triton").loss
    assert counts == {"loaded": 5 * (row + 4), "stored": 0}
    with counted_bytes(monkeypatch, logits) as counts:
        loss.backward()
    assert counts == {"loaded": 2 * row, "stored": 8 * row}


@interpreted
def test_a_scale_of_one_touches_nothing(monkeypatch):
    batch = make_batch(dtype=torch.float32)
    for scale, passes in ((1.0, 0), (0.5, 1)):
        logits = batch.logits.clone().requires_grad_() * 1
        loss = grpo_loss(logits, batch.ids, batch.advantages, overwrite_logits=True, backend="triton").loss
        with counted_bytes(monkeypatch, logits) as counts:
            (loss * scale).backward()
        assert counts == {key: passes * logits.numel() * 4 for key in ("loaded", "stored")}


@pytest.mark.parametrize("strides", ["sequences far apart", "tokens far apart"])
def test_offsets_beyond_two_to_the_31(strides):
    """Two rows of a bfloat16 tensor whose second begins beyond 2^31 elements. Only the pages touched get memory."""
    vocabulary, far = 200, 2**31 + 4096
    memory = torch.empty(far + vocabulary, dtype=torch.bfloat16, device=KERNEL_DEVICE)
    if strides == "sequences far apart":
        leaf = memory.as_strided((2, 1, vocabulary), (far, vocabulary, 1))
    else:
        leaf = memory.as_strided((1, 2, vocabulary), (far + vocabulary, far, 1))
    small = make_batch(*leaf.shape[:2], vocabulary, dtype=torch.bfloat16)
    leaf.copy_(small.logits)
    memory.requires_grad_()
    ids, advantages = small.ids.to(KERNEL_DEVICE), small.advantages.to(KERNEL_DEVICE)

    class View(torch.autograd.Function):
        """The far view as an intermediate of autograd, without a gradient for the memory between."""

        @staticmethod
        def forward(ctx, x):
            return leaf.view_as(leaf)

        @staticmethod
        def backward(ctx, grad):
            View.grad = grad.detach().clone()

    loss = grpo_loss(View.apply(torch.zeros((), requires_grad=True)), ids, advantages, backend="triton").loss
    loss.backward()
    expected = small.logits.clone().requires_grad_()
    expected_loss = grpo_loss(expected, small.ids, small.advantages, backend="torch").loss
    expected_loss.backward()
    torch.testing.assert_close(loss.cpu(), expected_loss)
    torch.testing.assert_close(View.grad.cpu(), expected.grad, rtol=1e-2, atol=1e-5)
    assert View.grad.abs().sum(-1).min() > 0


def test_grids_have_one_dimension(monkeypatch):
    """A completion of 65,536 tokens and more is legal; the second and third dimension of a grid end at 65,535."""
    from grpo_kernels.kernels import launch

    class Recorder:
        def __getitem__(self, grid):
            self.grid = grid
            return lambda *arguments, **constants: None

    recorder = Recorder()
    for name in ("token_stats_kernel", "grpo_kernel", "row_grad_kernel", "scale_rows_kernel"):
        monkeypatch.setattr(launch, name, recorder)
    shape = (2, 65_537)
    logits = torch.zeros(*shape, 3, device=KERNEL_DEVICE)
    ids, rows = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape)
    for call in (
        lambda: launch.token_stats(logits, ids, rows, 1.0),
        lambda: launch.grpo_rows(logits, ids, rows, rows, None, None, None, rows, None, None, GRPOLossConfig()),
        lambda: launch.row_grad(logits, ids, rows, rows, rows, rows, rows, None, 1.0, logits),
        lambda: launch.scale_rows(logits, rows),
    ):
        recorder.grid = None
        call()
        assert recorder.grid == (2 * 65_537,)


def test_launch_settings_stay_within_every_device():
    """At most 16 warps: a wavefront of 64 makes 1024 threads of them."""
    from grpo_kernels.kernels.launch import launch_settings

    for vocabulary in (1, 17, 32, 1000, 4096, 32001, 151936, 2**20):
        for warp_size in (32, 64):
            for has_softcap in (False, True):
                block, num_warps = launch_settings(vocabulary, warp_size, has_softcap)
                assert 1 <= num_warps <= 16
                assert block & (block - 1) == 0
                assert num_warps & (num_warps - 1) == 0


@pytest.mark.parametrize(
    ("dtype", "view", "aligned"),
    [
        (torch.bfloat16, lambda x: x, True),
        (torch.bfloat16, lambda x: x[:, 1:], True),
        (torch.bfloat16, lambda x: x[..., 8:], True),
        (torch.bfloat16, lambda x: x[..., 4:], False),
        (torch.float32, lambda x: x[..., 4:], True),
        (torch.float32, lambda x: x[..., 1:], False),
        (torch.float32, lambda x: x.flatten()[:315].view(3, 5, 21), False),
    ],
)
def test_alignment_is_what_the_addresses_say(dtype, view, aligned):
    """A wrong promise to the compiler would be a misaligned address on a GPU."""
    from grpo_kernels.kernels.launch import PLAIN, _constants

    logits = view(torch.zeros(3, 5, 32, dtype=dtype))
    assert _constants(logits, transform=PLAIN)["ALIGNED"] is aligned


def test_a_run_compiles_each_kernel_once(monkeypatch):
    """20 steps of other lengths, batch sizes, temperatures and options ask Triton for one variant of each kernel.

    The launches are recorded and not carried out; what Triton would compile is read off its own specialisation.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import JITFunction, create_function_from_signature

    from grpo_kernels.kernels import launch

    target = make_backend(GPUTarget("cuda", 90, 32))
    variants = {}

    def record(kernel, rows, arguments, **constants):
        function = kernel if isinstance(kernel, JITFunction) else JITFunction(kernel.fn, **kernel.kwargs)
        bind = create_function_from_signature(function.signature, function.params, target)
        _, specialization, options = bind(*arguments, **constants)
        variants.setdefault(function.__name__, set()).add((str(specialization), str(options)))

    monkeypatch.setattr(launch, "launch", record)
    for step in range(20):
        batch = make_batch(1 + step % 3, 1 + step, 33, seed=step, dtype=torch.float32).to(KERNEL_DEVICE)
        options = GRPOLossConfig(
            temperature=0.5 + step / 20,
            epsilon=0.1 + step / 100,
            beta=0.01 + step / 1000,
            entropy_coef=0.01 * (1 + step),
        )
        for overwrite in (False, True):
            logits = batch.logits.clone().requires_grad_() * 1
            output = grpo_loss(
                logits,
                batch.ids,
                batch.advantages,
                **batch.options,
                overwrite_logits=overwrite,
                backend="triton",
                config=options,
            )
            (output.loss / (step + 1)).backward()
        token_logps(batch.logits, batch.ids, options.temperature, backend="triton")
    counts = {name: len(found) for name, found in variants.items()}
    # grpo_kernel has two: with the gradient (overwrite_logits) and without.
    assert counts == {"grpo_kernel": 2, "row_grad_kernel": 1, "token_stats_kernel": 1, "scale_rows_kernel": 1}
