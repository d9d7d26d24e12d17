"""The formulae of docs/choosing-a-loss.md are what the code computes."""

import re
from pathlib import Path

import pytest
import torch

from grpo.advantages import group_advantages
from grpo_kernels import GRPOLossConfig
from grpo_kernels.config import LOSS_TYPES
from grpo_kernels.objective import per_token_derivative, per_token_loss, row_weights

PAGE = (Path(__file__).parents[2] / "docs" / "choosing-a-loss.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| `([^`]+)` \| .+ \|$", re.MULTILINE)
FORMULAE = {name: (loss, weight) for name, loss, weight in ROW.findall(PAGE)}
OPTIONS = {"epsilon": 0.2, "epsilon_high": 0.3, "delta": 1.6, "max_completion_length": 7}


def minimum(a, b):
    return torch.minimum(a, torch.as_tensor(b, dtype=torch.float64).expand_as(a))


FUNCTIONS = {
    "min": minimum, "clip": torch.clamp, "sg": torch.detach, "sigmoid": torch.sigmoid, "exp": torch.exp,
}  # fmt: skip


def config_of(name: str) -> GRPOLossConfig:
    options = OPTIONS if name in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo") else OPTIONS | {"delta": None}
    return GRPOLossConfig(loss_type=name, **options)


def phi(log_ratios, mask, advantages, config):
    (formula,) = re.findall(r"`phi` is `([^`]+)`", PAGE)
    positive = advantages >= 0
    k = torch.where(positive, config.vespo_k_pos, config.vespo_k_neg)
    lam = torch.where(positive, config.vespo_lambda_pos, config.vespo_lambda_neg)
    return eval(formula, FUNCTIONS | {"R": torch.exp((log_ratios * mask).sum(-1, keepdim=True)), "k": k, "lam": lam})


def test_every_loss_type_has_a_formula():
    assert set(FORMULAE) == set(LOSS_TYPES)


@pytest.mark.parametrize("name", LOSS_TYPES)
def test_the_loss_of_a_token_and_its_weight_are_as_written(name):
    torch.manual_seed(0)
    logps = -torch.rand(4, 6, dtype=torch.float64)
    log_ratios = 0.4 * torch.randn(4, 6, dtype=torch.float64)
    advantages = torch.tensor([[1.0], [-1.0], [0.5], [-2.0]], dtype=torch.float64)
    mask = (torch.arange(6) < torch.tensor([6, 4, 2, 5])[:, None]).double()
    config = config_of(name)
    tau = torch.where(advantages > 0, config.sapo_temperature_pos, config.sapo_temperature_neg).double()
    names = FUNCTIONS | OPTIONS | {
        "r": torch.exp(log_ratios), "A": advantages, "logp": logps, "tau": tau, "m": mask, "B": 4, "N": mask.sum(),
        "len": mask.sum(-1, keepdim=True), "phi": phi(log_ratios, mask, advantages, config),
    }  # fmt: skip
    loss, weight = (eval(formula, dict(names)) for formula in FORMULAE[name])
    expected = per_token_loss(logps, advantages, mask, config, old_logps=logps - log_ratios).loss
    torch.testing.assert_close(loss.expand_as(expected), expected)
    torch.testing.assert_close(weight.expand_as(mask), row_weights(config, mask, None))


def test_without_epsilon_high_cispo_cuts_every_ratio_near_one_to_epsilon():
    one = torch.ones(1, 1)
    slope = {
        high: per_token_derivative(-one, one, one, GRPOLossConfig(loss_type="cispo", epsilon_high=high)).item()
        for high in (None, 5.0)
    }
    assert slope == {None: pytest.approx(-0.2), 5.0: pytest.approx(-1.0)}


@pytest.mark.parametrize(
    "estimator, corrected, pull",
    [("k1", False, "nothing"), ("k2", False, "policy"), ("k3", False, "reference"),
     ("k1", True, "policy"), ("k3", True, "policy")],
)  # fmt: skip
def test_a_kl_term_pulls_where_the_page_says(estimator, corrected, pull):
    torch.manual_seed(0)
    logits = torch.randn(5, dtype=torch.float64, requires_grad=True)
    policy, reference = logits.log_softmax(-1), torch.randn(5, dtype=torch.float64).log_softmax(-1)
    config = GRPOLossConfig(beta=1.0, kl_estimator=estimator, use_bias_correction_kl=corrected)
    one = torch.ones(5, 1, dtype=torch.float64)
    # Each token of the vocabulary once, weighted with its probability: the mean over all that may be sampled.
    slopes = per_token_derivative(
        policy.detach()[:, None], one, 0 * one, config, ref_logps=reference[:, None]
    ).squeeze(-1)  # fmt: skip
    (pulled,) = torch.autograd.grad((policy.detach().exp() * slopes * policy).sum(), logits, retain_graph=True)
    kls = {
        "nothing": 0 * policy.sum(),
        "policy": (policy.exp() * (policy - reference)).sum(),
        "reference": (reference.exp() * (reference - policy)).sum(),
    }
    torch.testing.assert_close(pulled, torch.autograd.grad(kls[pull], logits)[0])


def test_leaving_one_out_multiplies_the_advantages_of_a_group_of_n():
    rewards = [[1.0, 0.0, 0.0, 0.5]]
    for scale in ("none", "group"):
        usual, others = (group_advantages(rewards, scale, estimator)[0] for estimator in ("grpo", "rloo"))
        assert others == pytest.approx([4 / 3 * a for a in usual])
