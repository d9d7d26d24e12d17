"""Losses, gradients, per-token values and metrics equal those of TRL 1.16.0's own code, in float64."""

import dataclasses
import json
import pathlib

import pytest
import torch

from grpo_kernels import (
    GRPOLossConfig,
    grpo_loss,
    linear_grpo_loss,
    off_policy_sequence_mask,
    token_logps,
    top_entropy_mask,
)

from .helpers import device_of, needs_triton

CASES = json.loads((pathlib.Path(__file__).parents[1] / "golden" / "trl_loss.json").read_text())["cases"]
OPTIONS = {field.name for field in dataclasses.fields(GRPOLossConfig)}


def name(index):
    options = CASES[index]["options"]
    return f"{index}-{options['loss_type']}-{options['importance_sampling_level']}"


def policy_mask_of(case):
    """The mask of the policy term that a case asks for, from float64 log-probabilities and entropies."""
    options, inputs = case["options"], case["inputs"]
    logits, advantages = (torch.tensor(inputs[key], dtype=torch.float64) for key in ("logits", "advantages"))
    ids, mask = (torch.tensor(inputs[key]) for key in ("ids", "mask"))
    logps, entropy = token_logps(logits, ids, options["temperature"], return_entropy=True)
    if options["top_entropy_quantile"] < 1:
        return top_entropy_mask(entropy, mask, options["top_entropy_quantile"])
    if options["off_policy_mask_threshold"] is not None:
        sampling = torch.tensor(inputs["sampling_logps"], dtype=torch.float64)
        return off_policy_sequence_mask(logps, sampling, advantages, mask, options["off_policy_mask_threshold"])
    return None


def from_logits(logits, *arguments, **options):
    """``(output, gradient of the logits)``."""
    logits = logits.clone().requires_grad_()
    output = grpo_loss(logits, *arguments, **options)
    return output, torch.autograd.grad(output.loss, logits)[0]


def from_hidden_states(logits, *arguments, **options):
    """The same from the factors of the logits, ``hidden @ weight.T`` with an orthogonal weight."""
    vocabulary = logits.shape[-1]
    square = torch.randn(vocabulary, vocabulary, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weight = torch.linalg.qr(square).Q.to(logits)
    hidden = (logits @ weight).requires_grad_()
    output = linear_grpo_loss(hidden, weight, *arguments, **options, all_metrics=True, chunk_bytes=4 * vocabulary * 5)
    output.metrics.pop("metric_tokens")
    return output, torch.autograd.grad(output.loss, hidden)[0] @ weight.T


ROUTES = [
    *(pytest.param(from_logits, backend, id=f"logits-{backend}") for backend in ("eager", "torch")),
    pytest.param(from_hidden_states, "torch", id="linear-torch"),
    pytest.param(from_logits, "triton", id="logits-triton", marks=needs_triton),
    pytest.param(from_hidden_states, "triton", id="linear-triton", marks=needs_triton),
]


@pytest.mark.parametrize(("loss_and_grad", "backend"), ROUTES)
@pytest.mark.parametrize("index", range(len(CASES)), ids=name)
def test_equals_trl(index, loss_and_grad, backend):
    case = CASES[index]
    options, inputs, expected = case["options"], case["inputs"], case["expected"]
    tolerance, dtype = (1e-5, torch.float32) if backend == "triton" else (1e-9, torch.float64)
    config = GRPOLossConfig(
        **{key: value for key, value in options.items() if key in OPTIONS}, epsilon=options["epsilon_low"]
    )

    def tensor(key):
        values = inputs[key]
        return None if values is None else torch.tensor(values, dtype=dtype, device=device_of(backend))

    logits = tensor("logits")
    ids, mask = (torch.tensor(inputs[key], device=device_of(backend)) for key in ("ids", "mask"))
    policy_mask = policy_mask_of(case)
    arguments = {
        "completion_mask": mask,
        "old_logps": tensor("old_logps"),
        "ref_logps": tensor("ref_logps"),
        "token_weights": tensor("token_weights"),
        "num_items_in_batch": options["num_items_in_batch"],
        "backend": backend,
        "config": config,
    }
    advantages = tensor("advantages")
    metrics = loss_and_grad(logits, ids, advantages, **arguments)[0].metrics
    if policy_mask is not None:
        policy_mask = policy_mask.to(advantages)
        if config.loss_type == "vespo":
            # Its token weights belong to the sequence weight, so a mask of the policy term goes into the advantages.
            advantages = advantages.unsqueeze(-1) * policy_mask
        else:
            arguments["token_weights"] = policy_mask
    output, grad = loss_and_grad(logits, ids, advantages, **arguments)
    if config.loss_type != "vespo":
        metrics = output.metrics

    def check(actual, wanted, masked=True):
        wanted = torch.tensor(wanted, dtype=torch.float64)
        wanted = wanted * mask.cpu() if masked else wanted
        torch.testing.assert_close(actual.detach().cpu().double(), wanted, rtol=tolerance, atol=tolerance)

    check(output.loss, expected["loss"], masked=False)
    check(grad, expected["grad_logits"], masked=False)
    check(output.logps, expected["logps"])
    check(output.entropy, expected["entropy"])
    constants = {"entropy_coef"}
    assert set(expected["metrics"]) - constants == set(metrics)
    for key, value in metrics.items():
        check(value, expected["metrics"][key], masked=False)
