"""Small models whose tensors are large beside what a process needs anyway, and the step that they are measured on."""

from __future__ import annotations

from transformers import Gemma2Config, GPT2Config, LlamaConfig, PretrainedConfig, Qwen2Config

from grpo.memory.step import Sizes

SIZES = Sizes(completions=4, num_generations=2, prompt=64, completion=160)
LORA_R = 8
LOSSES = ("linear", "logits", "eager")

_WIDTHS = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}

# Whether activations are checkpointed.
CHECKPOINTING = {"llama": True, "qwen2": False, "gpt2": True, "gemma2": False}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(vocab_size=16000, **_WIDTHS),
    "qwen2": Qwen2Config(vocab_size=24000, tie_word_embeddings=True, **_WIDTHS),
    "gpt2": GPT2Config(
        vocab_size=16000, n_embd=512, n_layer=2, n_head=8, n_positions=1024, bos_token_id=0, eos_token_id=0
    ),
    "gemma2": Gemma2Config(vocab_size=20000, head_dim=64, sliding_window=128, **_WIDTHS),
}
