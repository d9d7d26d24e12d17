"""`grpo plan`: what a run takes, and what would fit."""

import json

import pytest

from grpo.cli import main
from grpo.config import TrainConfig
from grpo.errors import InputError
from grpo.memory.plan import CONTEXT_BYTES, FRAGMENTATION, GIB, PlanConfig, Planner, plan

MODEL = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 1,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """The configuration of Qwen2.5-0.5B with 1 of its 24 layers."""
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(MODEL))
    return str(path)


def test_the_parts_of_a_phase_add_up_and_overhead_is_named_as_assumed(model):
    found = plan(PlanConfig(model=model))
    for phase in (found.rollout, found.training, found.eager):
        simulated = phase.cache + phase.activations + phase.loss
        kept = phase.weights + phase.adapters + phase.optimizer + phase.gradients
        assert phase.overhead == CONTEXT_BYTES + round(FRAGMENTATION * simulated)
        assert phase.total == kept + simulated + phase.overhead
    assert found.rollout.gradients == 0 and found.training.gradients == found.training.adapters
    sequences, tokens, numbers = 64, 512 + 256 - 1, 2 * 2 * 64  # keys and values, heads, head size
    assert found.rollout.cache in (sequences * tokens * numbers * 2, sequences * 512 * numbers * 2)


def test_the_eager_loss_takes_two_and_a_half_times_the_logits_in_float32(model):
    """Log-softmax, its gradient and the gradient's input, and what the head's product held before."""
    found = plan(PlanConfig(model=model))
    logits = 8 * 256 * MODEL["vocab_size"] * 4
    assert 2.5 * logits <= found.losses["eager"] <= 3.5 * logits
    assert found.eager.total - found.training.total > logits


def test_the_largest_sizes_fit_and_the_next_ones_do_not(model):
    config = PlanConfig(model=model, card="8", max_completion_length=1024, rollout_batch_size=8)
    planner = Planner(config)
    largest = {name: planner.largest(name, 8 * GIB) for name in ("linear", "eager")}
    for name, sizes in largest.items():
        batch, length = sizes.batch_size, sizes.completion_length
        assert planner.training(batch, 1024, name).total <= 8 * GIB < planner.training(batch + 1, 1024, name).total
        if length + 64 <= planner.most_completion:
            assert planner.training(8, length, name).total <= 8 * GIB < planner.training(8, length + 64, name).total
    assert largest["linear"].batch_size > 1.5 * largest["eager"].batch_size


def test_checkpointing_4_bits_and_8_bit_adam_each_save(model):
    def total(**options) -> int:
        return plan(PlanConfig(model=model, **options)).training.total

    usual = total()
    assert total(gradient_checkpointing=False) > usual
    assert total(load_in_4bit=True) < usual
    assert total(optim="adamw_8bit") < usual
    assert total(dtype="float32") > usual


def test_a_run_is_planned_with_its_own_options(model):
    run = TrainConfig(model=model, data="x.jsonl", per_device_train_batch_size=2, lora_r=4, loss_path="eager")
    config = PlanConfig.of_run(run, max_prompt_length=100, gpu_memory=1.0)
    assert (config.per_device_train_batch_size, config.lora_r, config.max_prompt_length) == (2, 4, 100)
    found = plan(config, search=False)
    assert found.loss_path == "reference" and found.largest == {}
    assert found.fits is False
    assert found.summary().startswith("memory (simulated): rollout ") and "of 1.00 GB" in found.summary()
    assert found.warnings()[0].startswith("the rollout phase takes ")
    assert "lower --rollout-batch-size" in found.warnings()[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_memory": 0.0}, "--gpu-memory 0.0: must be a positive number of GB"),
        ({"gpu_memory": 24.0, "card": "24"}, "--card is a usual --gpu-memory: give one of them"),
        ({"lora_r": 0}, "--lora-r 0: must be at least 1"),
        ({"max_completion_length": 4000}, "--max-completion-length 4000: the model takes 2048 tokens in all"),
        ({"lora_target_modules": ("nothing",)}, "--lora-target-modules nothing"),
        ({"lora_target_modules": ("lm_head",)}, "lm_head carries a PEFT adapter"),
    ],
)
def test_refusals_name_the_option(model, options, message):
    with pytest.raises(InputError) as error:
        plan(PlanConfig(model=model, **options))
    assert message in str(error.value)


def test_the_command_prints_a_table_or_json(model, capsys):
    arguments = ["plan", "--model", model, "--max-completion-length", "64"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "simulated" in printed and "overhead (assumed)" in printed and "fits cards of 8 GB and more" in printed
    assert main([*arguments, "--max-prompt-length", "1900", "--gpu-memory", "6.5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "simulated" and found["capacity"] == 6.5 * GIB
    assert set(found["largest"]) == {"linear", "eager"}
    assert main(["plan", "--model", "/nowhere/at/all"]) == 2
    assert "--model /nowhere/at/all: its configuration cannot be read" in capsys.readouterr().err


def test_without_a_model_it_is_the_demo_that_is_planned(capsys):
    assert main(["plan"]) == 0
    assert "1024 sequences of 16 + 4 tokens in a micro-batch, 1024 sampled at once" in capsys.readouterr().out
