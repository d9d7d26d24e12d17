"""Bad input: a ValueError or TypeError that names the argument, what it was and what is allowed, before any kernel."""

import math

import pytest
import torch

from grpo_kernels import GRPOLossConfig, grpo_loss, ops, token_logps

from .helpers import ALL_BACKENDS, device_of, make_batch


@pytest.fixture(autouse=True)
def no_kernel_runs(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("a kernel ran")

    for name in ("token_stats", "grpo_rows", "grpo_rows_"):
        monkeypatch.setattr(ops, name, refuse)


def call(backend="torch", **changes):
    batch = make_batch(dtype=torch.float32).but(**changes).to(device_of(backend))
    return grpo_loss(batch.logits, batch.ids, batch.advantages, **batch.options, backend=backend)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"logits": torch.zeros(3, 5)}, ValueError, ["logits", "[3, 5]", "[B, T, V]"]),
        ({"logits": torch.zeros(3, 5, 0)}, ValueError, ["logits", "[3, 5, 0]", "V >= 1"]),
        ({"logits": torch.zeros(3, 5, 37, dtype=torch.int64)}, TypeError, ["logits", "int64", "float32, bfloat16"]),
        ({"ids": torch.zeros(3, 4, dtype=torch.int64)}, ValueError, ["completion_ids", "[3, 4]", "[3, 5]"]),
        ({"ids": torch.zeros(3, 5)}, TypeError, ["completion_ids", "float32", "int64"]),
        ({"ids": torch.full((3, 5), 37)}, ValueError, ["completion_ids", "37", "0 to 36"]),
        ({"ids": torch.full((3, 5), -1)}, ValueError, ["completion_ids", "-1", "0 to 36"]),
        ({"advantages": torch.zeros(4)}, ValueError, ["advantages", "[4]", "[3]", "[3, 1]", "[3, 5]"]),
        ({"advantages": torch.zeros(5)}, ValueError, ["advantages", "[5]"]),
        ({"advantages": torch.tensor([0.0, math.nan, 0])}, ValueError, ["advantages", "nan", "finite"]),
        ({"advantages": torch.tensor([0.0, 0, -math.inf])}, ValueError, ["advantages", "-inf", "finite"]),
        ({"completion_mask": torch.ones(3, 6)}, ValueError, ["completion_mask", "[3, 6]", "[3, 5]"]),
        ({"old_logps": torch.zeros(3)}, ValueError, ["old_logps", "[3]", "[3, 5]"]),
        ({"ref_logps": torch.zeros(5, 3)}, ValueError, ["ref_logps", "[5, 3]", "[3, 5]"]),
        ({"token_weights": torch.zeros(1, 5)}, ValueError, ["token_weights", "[1, 5]", "[3, 1]"]),
        ({"num_items_in_batch": 0}, ValueError, ["num_items_in_batch", "0", "> 0"]),
        ({"num_items_in_batch": math.nan}, ValueError, ["num_items_in_batch", "nan", "> 0"]),
        ({"num_items_in_batch": torch.ones(2)}, ValueError, ["num_items_in_batch", "[2]"]),
        ({"num_items_in_batch": True}, ValueError, ["num_items_in_batch", "True", "> 0"]),
        ({"num_items_in_batch": torch.tensor(-3.0)}, ValueError, ["num_items_in_batch", "-3", "> 0"]),
        ({"num_items_in_batch": 10**400}, ValueError, ["num_items_in_batch", "> 0"]),
        ({"completion_mask": torch.full((3, 5), 0.5)}, ValueError, ["completion_mask", "0.5", "0 and 1"]),
        ({"advantages": torch.tensor([0.0, 1e39, 0], dtype=torch.float64)}, ValueError, ["advantages", "inf"]),
        ({"config": {"beta": 0.1}}, TypeError, ["config", "dict", "GRPOLossConfig"]),
        ({"config": GRPOLossConfig(beta=0.1), "ref_logps": None}, ValueError, ["ref_logps", "None", "beta", "0.1"]),
    ],
)
@pytest.mark.parametrize("backend", ALL_BACKENDS)
def test_an_argument_is_refused_by_name(backend, changes, error, words):
    with pytest.raises(error) as caught:
        call(backend, **changes)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["advantages", "completion_mask", "old_logps", "ref_logps"])
def test_a_tensor_must_be_a_tensor(name):
    batch = make_batch()
    arguments = {"advantages": batch.advantages, **batch.options, name: [1.0, 2.0, 3.0]}
    with pytest.raises(TypeError, match=f"{name} is list"):
        grpo_loss(batch.logits, batch.ids, **arguments)


@pytest.mark.parametrize("name", ["completion_ids", "advantages", "completion_mask", "old_logps", "ref_logps"])
def test_devices_must_agree(name):
    batch = make_batch()
    arguments = {"completion_ids": batch.ids, "advantages": batch.advantages, **batch.options}
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(ValueError, match=f"{name} is on meta; allowed: cpu"):
        grpo_loss(batch.logits, **arguments)


def test_ids_beyond_the_vocabulary_are_legal_where_masked():
    batch = make_batch()
    mask = torch.zeros_like(batch.ids)
    with pytest.raises(AssertionError, match="a kernel ran"):
        call(ids=torch.full((3, 5), 99), completion_mask=mask)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((torch.zeros(2, 3, 4), torch.full((2, 3), 4)), ValueError, ["ids", "4", "0 to 3"]),
        ((torch.zeros(2, 3, 4), torch.zeros(2, 2, dtype=torch.int64)), ValueError, ["ids", "[2, 2]", "[2, 3]"]),
        ((torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), 0.0), ValueError, ["temperature", "0.0", "> 0"]),
        ((torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.int64), "1"), TypeError, ["temperature", "'1'"]),
    ],
)
def test_token_logps_refuses_by_name(arguments, error, words):
    with pytest.raises(error) as caught:
        token_logps(*arguments)
    for word in words:
        assert word in str(caught.value)
