"""The backend follows the device and the dtype, an argument or GRPO_KERNELS_BACKEND; what cannot run says why."""

import subprocess
import sys

import pytest
import torch

from grpo_kernels import backend as module
from grpo_kernels.backend import choose_backend

from .helpers import needs_triton

LOGITS = torch.zeros(1, 1, 2)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    monkeypatch.delenv("GRPO_KERNELS_BACKEND", raising=False)


class OnDevice:
    """Stands for logits on a device that this machine lacks."""

    def __init__(self, device, dtype=torch.bfloat16):
        self.device, self.dtype = torch.device(device), dtype


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("cpu", torch.float32, "torch"),
        ("cuda", torch.bfloat16, "triton"),
        ("cuda", torch.float64, "torch"),
        ("xpu", torch.float16, "triton"),
        ("mps", torch.float16, "torch"),
    ],
)
def test_automatic_choice(monkeypatch, device, dtype, expected):
    monkeypatch.setattr(module, "has_triton", lambda: True)
    assert choose_backend(None, OnDevice(device, dtype)) == expected


def test_without_triton_a_gpu_uses_torch(monkeypatch):
    monkeypatch.setattr(module, "has_triton", lambda: False)
    assert choose_backend(None, OnDevice("cuda")) == "torch"
    with pytest.raises(ValueError, match="not installed"):
        choose_backend("triton", OnDevice("cuda"))


def test_the_environment_forces_one_and_the_argument_wins(monkeypatch):
    monkeypatch.setenv("GRPO_KERNELS_BACKEND", "eager")
    assert choose_backend(None, LOGITS) == "eager"
    assert choose_backend("torch", LOGITS) == "torch"


def test_an_unknown_backend_is_named(monkeypatch):
    with pytest.raises(ValueError, match="backend is 'cuda'; allowed: triton, torch, eager"):
        choose_backend("cuda", LOGITS)
    monkeypatch.setenv("GRPO_KERNELS_BACKEND", "numpy")
    with pytest.raises(ValueError, match="GRPO_KERNELS_BACKEND is 'numpy'"):
        choose_backend(None, LOGITS)


@needs_triton
def test_triton_on_the_cpu_asks_for_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        choose_backend("triton", LOGITS)


@needs_triton
def test_triton_refuses_float64_by_name():
    with pytest.raises(ValueError, match="float64"):
        choose_backend("triton", OnDevice("cuda", torch.float64))


def test_the_package_works_where_triton_is_not_installed():
    code = """
import sys
sys.modules["triton"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "triton" else find_spec(name, *a)
import torch
from grpo_kernels import grpo_loss
logits = torch.randn(1, 2, 5, requires_grad=True)
grpo_loss(logits, torch.tensor([[1, 2]]), torch.ones(1)).loss.backward()
assert logits.grad.abs().sum() > 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)
