"""The loops of ``examples/loops`` learn, and their losses are those of the textbooks."""

import importlib.util
import pathlib
import runpy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "loops"
IDS = torch.tensor([[1, 5, 6, 7, 8, 2], [0, 1, 9, 10, 11, 2]])
MASK = (IDS != 0).long()
COMPLETION_MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])


def loop(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def plain_logps(model, ids, mask, length):
    """[B, T] from the model's own logits."""
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    log_probs = model(ids, attention_mask=mask, position_ids=positions).logits[:, -length - 1 : -1].log_softmax(-1)
    return log_probs.gather(-1, ids[:, -length:, None]).squeeze(-1)


def sevens(ids):
    return (ids == 7).float().mean(-1)


def test_the_grpo_loop_learns(model):
    means = loop("grpo_loop").train(model, torch.tensor([1, 5, 6]), sevens)
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.3


def test_the_ppo_loop_learns(model):
    means = loop("ppo").train(model, torch.nn.Linear(32, 1), torch.tensor([1, 5, 6]), sevens)
    assert sum(means[-3:]) / 3 > sum(means[:3]) / 3 + 0.3


def test_advantages_of_ppo_are_sums_of_discounted_errors():
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.125]])
    deltas = [0.0 + 0.5 * 0.25 - 0.5, 0.0 + 0.5 * 0.125 - 0.25, 1.0 - 0.125]
    expected = [deltas[0] + 0.1 * deltas[1] + 0.01 * deltas[2], deltas[1] + 0.1 * deltas[2], deltas[2]]
    actual = loop("ppo").estimate_advantages(rewards, values, gamma=0.5, lam=0.2)
    torch.testing.assert_close(actual, torch.tensor([expected]))


def test_the_sft_loss_is_the_cross_entropy_and_falls(model):
    sft = loop("sft")
    batch = (IDS, MASK, COMPLETION_MASK)
    labels = IDS[:, -3:].masked_fill(COMPLETION_MASK == 0, -100)
    positions = (MASK.cumsum(-1) - 1).clamp(min=0)
    logits = model(IDS, attention_mask=MASK, position_ids=positions).logits[:, -4:-1]
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(sft.loss(model, *batch), expected)
    losses = sft.train(model, 10 * [batch])
    assert losses[-1] < losses[0] / 2


def test_the_dpo_loss_is_the_papers_and_falls(model):
    dpo = loop("dpo")
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(model, lora).eval()
    rejected = IDS.flip(-1).clone()
    chosen, rejected = ((ids, torch.ones_like(ids), COMPLETION_MASK) for ids in (IDS, rejected))

    def margin(ids, mask, completion_mask):
        policy = plain_logps(model, ids, mask, 3)
        with model.disable_adapter():
            return ((policy - plain_logps(model, ids, mask, 3)) * completion_mask).sum(-1)

    expected = -torch.log(torch.sigmoid(0.1 * (margin(*chosen) - margin(*rejected)))).mean()
    torch.testing.assert_close(dpo.loss(model, chosen, rejected), expected)
    losses = dpo.train(model, 10 * [(chosen, rejected)])
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", ["grpo_loop", "sft", "dpo", "ppo"])
def test_each_runs_as_a_script(name, capsys):
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("[")
