"""Options that cannot work are refused by name, with what is allowed."""

import dataclasses
from pathlib import Path

import pytest

from grpo.config import DEMO, LOSS_TYPES, TrainConfig, default_output_dir
from grpo.errors import InputError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_generations": 1}, "--num-generations 1: must be at least 2"),
        ({"temperature": 0.0}, "--temperature 0.0: must be a positive number"),
        ({"temperature": float("nan")}, "--temperature nan: must be a positive number"),
        ({"learning_rate": float("inf")}, "--learning-rate inf"),
        ({"beta": -1.0}, "--beta -1.0: must be 0 or a positive number"),
        ({"epsilon": -0.1}, "--epsilon -0.1"),
        ({"max_steps": 0}, "--max-steps 0: must be at least 1"),
        ({"eval_size": 0, "model": "m", "data": "d"}, "--eval-size 0"),
        ({"adam_beta2": 1.0}, "--adam-beta2 1.0: must be in [0, 1)"),
        ({"min_lr_rate": 1.1}, "--min-lr-rate 1.1"),
        ({"seed": -1}, "--seed -1"),
        ({"loss_type": "ppo"}, "--loss-type ppo: must be one of grpo, bnpo"),
        ({"scale_rewards": "std"}, "--scale-rewards std: must be one of group, batch, none"),
        ({"dtype": "int8"}, "--dtype int8"),
        ({"loss_path": "fused"}, "--loss-path fused: must be one of auto, linear, logits, eager"),
        ({"reward": ()}, "--reward needs at least one name"),
        ({"reward": ("numeric", "numeric")}, "give each reward once"),
        ({"reward_weights": (1.0, 2.0)}, "--reward-weights has 2 numbers for 1 rewards"),
        ({"reward_weights": (float("nan"),)}, "--reward-weights nan"),
        ({"num_generations": 7}, "make it a multiple of --num-generations (7)"),
        ({"model": "m", "data": "d", "eval_data": "e", "eval_size": 3}, "give one of them"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(InputError) as error:
        TrainConfig(**options)
    assert message in str(error.value)


def test_completions_are_counted_by_group():
    config = TrainConfig(per_device_train_batch_size=4, gradient_accumulation_steps=6, num_generations=8)
    assert (config.completions_per_step, config.questions_per_step) == (24, 3)


def test_the_demo_is_a_valid_configuration_of_known_options():
    assert set(DEMO) <= {field.name for field in dataclasses.fields(TrainConfig)}
    assert TrainConfig(**DEMO).questions_per_step == 64


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_loss_gets_its_options(loss_type):
    config = TrainConfig(loss_type=loss_type, beta=0.1, epsilon=0.3, epsilon_high=0.4, temperature=0.5)
    loss = config.loss_config()
    assert (loss.loss_type, loss.beta, loss.epsilon, loss.epsilon_high) == (loss_type, 0.1, 0.3, 0.4)
    assert (loss.temperature, loss.max_completion_length) == (0.5, config.max_completion_length)


def test_what_the_loss_refuses_is_an_input_error():
    with pytest.raises(InputError, match="epsilon_high"):
        TrainConfig(epsilon_high=-1.0).loss_config()


def test_the_default_output_folder_is_new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert default_output_dir(TrainConfig(), "now") == Path("runs/demo-now")
    Path("runs/demo-now").mkdir(parents=True)
    assert default_output_dir(TrainConfig(), "now") == Path("runs/demo-now-2")
    assert default_output_dir(TrainConfig(model="org/name", data="d"), "now") == Path("runs/name-now")
