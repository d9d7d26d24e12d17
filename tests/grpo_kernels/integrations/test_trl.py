"""FusedGRPOTrainer makes the updates of TRL's GRPOTrainer: five steps give the same samples, parameters and metrics."""

import pytest
import torch
from peft import LoraConfig
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

trl = pytest.importorskip("trl", minversion="1.16")

from datasets import Dataset  # noqa: E402

from grpo_kernels.integrations.trl import FusedGRPOTrainer  # noqa: E402

CHARACTERS = ["<pad>", "<eos>", *"0123456789+="]
LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo")
STEPS = 5


SIZES = {
    "vocab_size": len(CHARACTERS), "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "initializer_range": 0.3,
    "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def save(model, folder):
    """A random model of one layer with a character tokenizer."""
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    torch.manual_seed(0)
    return save(Qwen2ForCausalLM(Qwen2Config(**SIZES)), tmp_path_factory.mktemp("model"))


def small_digits(completions, **_):
    """A reward that differs within most groups, and is equal in some."""
    return [float(sum(c in "01234" for c in text) >= 2) for text in completions]


def train(trainer_class, model_folder, folder, lora=True, all_metrics=None, **options):
    """The trainer, trained for five steps of two micro-batches; every other step is off-policy."""
    arguments = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 4,
        "steps_per_generation": 4, "max_completion_length": 5, "max_steps": STEPS, "learning_rate": 3e-2,
        "logging_steps": 1, "report_to": [], "save_strategy": "no", "use_cpu": True, "bf16": False, "seed": 3,
        "temperature": 0.9, "gradient_checkpointing": False, "disable_tqdm": True, "epsilon": 0.05, "optim": "sgd",
        "max_grad_norm": 1.0,
    }  # fmt: skip
    trainer = trainer_class(
        model=model_folder,
        reward_funcs=small_digits,
        args=trl.GRPOConfig(output_dir=str(folder), **arguments | options),
        train_dataset=Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(8)]}),
        peft_config=LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
        if lora
        else None,
        **({} if all_metrics is None else {"all_metrics": all_metrics}),
    )
    trainer.before = parameters(trainer)
    trainer.train()
    return trainer


def parameters(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters() if p.requires_grad])


def metrics(trainer):
    machine = ("time", "runtime", "second", "flos", "profiling")
    return [
        {name: value for name, value in entry.items() if not any(word in name for word in machine)}
        for entry in trainer.state.log_history
    ]


def assert_same_updates(actual, expected, tolerance=1e-5):
    assert (expected.before - parameters(expected)).abs().max() > 1e-3  # training changes them
    torch.testing.assert_close(parameters(actual), parameters(expected), rtol=0, atol=tolerance)


def assert_same_training(model_folder, folder, **options):
    expected = train(trl.GRPOTrainer, model_folder, folder, **options)
    actual = train(FusedGRPOTrainer, model_folder, folder, **options)
    assert_same_updates(actual, expected)
    for ours, theirs in zip(metrics(actual), metrics(expected), strict=True):
        known = {name: value for name, value in theirs.items() if value is not None}  # of no token: not a number
        assert {name: ours[name] for name in known} == pytest.approx(known, rel=1e-3, abs=1e-5)
        assert set(ours) == set(theirs)


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_lora_training_is_the_same(model_folder, tmp_path, loss_type, beta):
    epsilon_high = 1.2 if loss_type == "cispo" else None
    assert_same_training(model_folder, tmp_path, loss_type=loss_type, beta=beta, epsilon_high=epsilon_high)


@pytest.mark.parametrize(
    "options",
    [
        {"importance_sampling_level": "sequence", "beta": 0.1, "use_bias_correction_kl": True},
        {"delta": 1.1, "scale_rewards": "none", "mask_truncated_completions": True},
        {"off_policy_mask_threshold": 0.01},
        {"top_entropy_quantile": 0.4, "off_policy_mask_threshold": 0.01, "loss_type": "grpo"},
        {"entropy_coef": 0.1},
        {"entropy_coef": 0.1, "loss_type": "grpo"},
        {"entropy_coef": 0.1, "use_adaptive_entropy": True, "entropy_coef_delta": 0.05, "entropy_target": 1.95},
        {"cast_lm_head_to_fp32": True, "num_iterations": 2},
    ],
    ids=lambda options: "-".join(options),
)
def test_training_with_other_options_is_the_same(model_folder, tmp_path, options):
    assert_same_training(model_folder, tmp_path, **options)


def test_full_fine_tuning_with_a_reference_model_is_the_same(model_folder, tmp_path):
    assert_same_training(model_folder, tmp_path, lora=False, beta=0.1, learning_rate=3e-1)


def test_the_load_balancing_loss_of_a_mixture_of_experts_is_the_same(tmp_path):
    config = MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=1, router_aux_loss_coef=0.5)
    torch.manual_seed(0)
    folder = save(MixtralForCausalLM(config), tmp_path / "model")
    assert_same_training(folder, tmp_path, lora=False, learning_rate=3e-1)


def test_masks_act_on_the_loss_of_vespo_alone(model_folder, tmp_path):
    """The mean of its sequence weights may differ where masked tokens count otherwise."""
    options = {"loss_type": "vespo", "off_policy_mask_threshold": 0.01, "top_entropy_quantile": 0.6}
    expected = train(trl.GRPOTrainer, model_folder, tmp_path, **options)
    assert_same_updates(train(FusedGRPOTrainer, model_folder, tmp_path, **options), expected)


def test_tokens_without_a_gradient_may_be_left_out(model_folder, tmp_path):
    expected = train(trl.GRPOTrainer, model_folder, tmp_path)
    actual = train(FusedGRPOTrainer, model_folder, tmp_path, all_metrics=False)
    assert_same_updates(actual, expected)
    assert metrics(actual)[0]["entropy"] != pytest.approx(metrics(expected)[0]["entropy"], rel=1e-3)


def test_a_model_without_a_plain_head_trains_from_its_logits(model_folder, tmp_path, caplog, monkeypatch):
    """Its head is hidden from us; TRL still sees it."""
    expected = train(trl.GRPOTrainer, model_folder, tmp_path, beta=0.1)
    monkeypatch.setattr("grpo_kernels.integrations.trl.matches_model_logits", lambda model: False)
    monkeypatch.setattr("grpo_kernels.integrations.trl.linear_grpo_loss", None)
    actual = train(FusedGRPOTrainer, model_folder, tmp_path, beta=0.1)
    assert_same_updates(actual, expected)
    assert "starts from its logits" in caplog.text


@pytest.mark.parametrize("loss_type", ["dapo", "vespo"])
def test_importance_sampling_correction_is_the_same(model_folder, tmp_path, loss_type):
    """As if vLLM had sampled: its ratios come with the inputs of the loss."""
    losses, gradients = [], []
    generator = torch.Generator().manual_seed(0)
    shape = (4, 5)
    mask = (torch.arange(5) < torch.tensor([[5], [3], [1], [4]])).long()
    inputs = {
        "prompt_ids": torch.randint(2, 14, (4, 3), generator=generator), "prompt_mask": torch.ones(4, 3).long(),
        "completion_ids": torch.randint(2, 14, shape, generator=generator), "completion_mask": mask,
        "tool_mask": torch.tensor([[1, 1, 0, 1, 1]]).expand(shape), "advantages": torch.tensor([1.0, -1.0, 0.5, -0.5]),
        "old_per_token_logps": -2 * torch.rand(shape, generator=generator), "num_items_in_batch": mask.sum(),
        "importance_sampling_ratio": 0.5 + torch.rand(shape, generator=generator),
    }  # fmt: skip
    for trainer_class in (trl.GRPOTrainer, FusedGRPOTrainer):
        trainer = train(trainer_class, model_folder, tmp_path, loss_type=loss_type, max_steps=0)
        trainer.use_vllm = True
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.requires_grad]))
    torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-7)


def test_options_that_would_give_other_numbers_are_named(model_folder, tmp_path):
    with pytest.raises(ValueError, match=r"entropy_coef is 0\.1 and top_entropy_quantile 0\.5"):
        train(FusedGRPOTrainer, model_folder, tmp_path, entropy_coef=0.1, top_entropy_quantile=0.5)
