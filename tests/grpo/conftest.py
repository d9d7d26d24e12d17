"""Tiny random models and a character tokenizer; nothing is downloaded."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from grpo.groups import Task
from grpo.policy import Policy, make_policy

CHARACTERS = ["<pad>", "<eos>", "<bos>", *"0123456789+-=abcdefghijklmnopqrstuvwxyz<>/ .?\n", *string.ascii_uppercase]
PAD, EOS, BOS = 0, 1, 2
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.role[0] }}{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


def character_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")


def tiny_model(kind: str):
    """A random model of two layers; `kind` is llama, qwen2 or gpt2."""
    torch.manual_seed(0)
    shape = {"vocab_size": len(CHARACTERS), "eos_token_id": EOS, "bos_token_id": BOS, "pad_token_id": PAD}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.3}
    if kind == "gpt2":
        config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3, **shape)
        return GPT2LMHeadModel(config).eval()
    config_class, model_class = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }[kind]
    return model_class(config_class(**sizes, **shape)).eval()


def tiny_policy(kind: str = "qwen2", trained: bool = True) -> Policy:
    """With `trained`, the adapters are not at their start, where they do nothing."""
    policy = make_policy(tiny_model(kind), character_tokenizer(), lora_r=4, lora_alpha=8)
    if trained:
        torch.manual_seed(1)
        for parameter in policy.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    return policy


def task(id: str = "q", prompt: str = "1+2=", answer: str = "3", rules: tuple[str, ...] = ("numeric@1",)) -> Task:
    ids = tuple(CHARACTERS.index(c) for c in prompt)
    return Task(id, None, rules, prompt, ids, {"answer": answer})


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved tiny model with its tokenizer and a chat template."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model("qwen2").save_pretrained(folder)
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def data_file(tmp_path: Path) -> Path:
    """Thirty sums."""
    path = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(6) for b in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
