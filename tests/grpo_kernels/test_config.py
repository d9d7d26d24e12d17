"""GRPOLossConfig refuses what cannot be, by name."""

import dataclasses

import pytest

from grpo_kernels import GRPOLossConfig

from .helpers import LOSS_TYPES, config


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type_is_accepted(loss_type):
    assert config(loss_type).loss_type == loss_type


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("loss_type", "ppo", "grpo, bnpo, dr_grpo, dapo, luspo, cispo, sapo, vespo"),
        ("importance_sampling_level", "word", "token, sequence"),
        ("kl_estimator", "k4", "k1, k2, k3"),
        ("beta", -0.1, ">= 0"),
        ("epsilon", -0.1, ">= 0"),
        ("epsilon_high", -1.0, ">= 0"),
        ("delta", 0.0, "> 0"),
        ("temperature", 0.0, "> 0"),
        ("temperature", -1.0, "> 0"),
        ("temperature", 1e-40, "> 0"),
        ("beta", 10**400, "finite"),
        ("temperature", float("nan"), "> 0"),
        ("temperature", float("inf"), "finite"),
        ("entropy_coef", float("inf"), "finite"),
        ("sapo_temperature_pos", 0.0, "> 0"),
        ("sapo_temperature_neg", -2.0, "> 0"),
        ("vespo_k_pos", -1.0, ">= 0"),
        ("max_completion_length", 0, ">= 1"),
        ("max_completion_length", 2.5, "whole number"),
    ],
)
def test_an_impossible_value_is_named_with_what_is_allowed(option, value, allowed):
    with pytest.raises(ValueError) as error:
        GRPOLossConfig(**{option: value})
    assert option in str(error.value)
    assert repr(value) in str(error.value)
    assert allowed in str(error.value)


@pytest.mark.parametrize("value", ["0.1", True, [1]])
def test_a_number_must_be_a_number(value):
    with pytest.raises(TypeError, match="epsilon is"):
        GRPOLossConfig(epsilon=value)


def test_a_switch_must_be_a_switch():
    with pytest.raises(TypeError, match="use_bias_correction_kl is 'yes'"):
        GRPOLossConfig(use_bias_correction_kl="yes")


def test_dr_grpo_needs_the_length_it_divides_by():
    with pytest.raises(ValueError, match="max_completion_length"):
        GRPOLossConfig(loss_type="dr_grpo")


@pytest.mark.parametrize("loss_type", ["cispo", "sapo", "vespo"])
def test_delta_belongs_to_clipped_losses(loss_type):
    with pytest.raises(ValueError, match="delta"):
        config(loss_type, delta=2.0)


def test_epsilon_high_defaults_to_epsilon():
    assert GRPOLossConfig(epsilon=0.3).upper_epsilon == 0.3
    assert GRPOLossConfig(epsilon=0.3, epsilon_high=0.0).upper_epsilon == 0.0


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        GRPOLossConfig().beta = 1.0
