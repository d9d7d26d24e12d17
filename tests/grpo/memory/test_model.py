"""A policy without weights has the sizes of the real one."""

import pytest
import torch
from transformers import LlamaConfig

from grpo.errors import InputError
from grpo.memory.four_bit import FourBitLinear
from grpo.memory.model import FakePolicy, ModelOptions, read_config
from tests.grpo.conftest import tiny_model, tiny_policy

LLAMA_8B = LlamaConfig(
    vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=8, max_position_embeddings=8192,
)  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_weights_and_adapters_are_those_of_the_real_policy(kind):
    real = tiny_policy(kind).model
    adapters = sum(p.nbytes for p in real.parameters() if p.requires_grad)
    others = {t for t in (*real.parameters(), *real.buffers()) if not t.requires_grad}
    fake = FakePolicy(tiny_model(kind).config, ModelOptions(dtype="float32", lora_r=4))
    assert fake.adapters == adapters
    assert fake.weights == sum(t.nbytes for t in others)
    assert fake.optimizer == 2 * adapters


def test_a_real_size_needs_no_memory():
    """Llama 3 8B: 8.03 billion parameters."""
    fake = FakePolicy(LLAMA_8B, ModelOptions())
    assert fake.weights == pytest.approx(2 * 8.030e9, rel=1e-3)
    assert fake.adapters == 4 * 41_943_040  # PEFT's print_trainable_parameters() for r = 16 on all linear layers


def test_four_bits_are_half_a_byte_and_what_scales_them():
    layer = FourBitLinear(torch.nn.Linear(1024, 4096, bias=False))
    held = sum(t.nbytes for t in (*layer.parameters(), *layer.buffers()))
    assert held == 1024 * 4096 / 2 + 1024 * 4096 / 64 + 1024 * 4096 / 64 / 256 * 4
    whole, four = (FakePolicy(LLAMA_8B, ModelOptions(load_in_4bit=quantised)) for quantised in (False, True))
    outside = 2 * 2 * 128256 * 4096  # embeddings and head stay as they are
    assert four.weights - outside == pytest.approx((whole.weights - outside) * (0.5 + 1 / 64 + 1 / 4096) / 2, rel=1e-3)


def test_refusals_name_what_is_wrong(tmp_path):
    with pytest.raises(InputError, match=f"--model {tmp_path}: its configuration cannot be read"):
        read_config(str(tmp_path))
    with pytest.raises(InputError, match="--load-in-4bit: GPT2LMHeadModel has no linear layers"):
        FakePolicy(tiny_model("gpt2").config, ModelOptions(load_in_4bit=True))
