"""What is alive in the phases of a step."""

import pytest
from transformers import LlamaConfig, MistralConfig

from grpo.memory.losses import LOSSES
from grpo.memory.model import FakePolicy, ModelOptions
from grpo.memory.step import Sizes, rollout_peak, training_peaks

LAYERS, KV_HEADS, HEAD = 3, 2, 16
WIDTHS = {
    "vocab_size": 50000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 4096,
}  # fmt: skip


@pytest.fixture(scope="module")
def fake() -> FakePolicy:
    return FakePolicy(LlamaConfig(**WIDTHS), ModelOptions())


def test_the_cache_holds_keys_and_values_of_all_tokens_but_the_last(fake):
    peak = rollout_peak(fake, Sizes(completions=6, num_generations=3, prompt=100, completion=200))
    of_a_token = 2 * LAYERS * KV_HEADS * HEAD * 2
    assert peak.cache == 6 * 299 * of_a_token
    assert peak.prompt_cache == pytest.approx(6 * 100 * of_a_token, abs=2000)  # a mask, and what is like it
    # Logits in bfloat16; in float32 scores, with temperature, and their softmax.
    assert peak.decoding == pytest.approx(6 * WIDTHS["vocab_size"] * (2 + 3 * 4), rel=0.01)


def test_a_sliding_window_bounds_the_cache():
    fake = FakePolicy(MistralConfig(sliding_window=64, **WIDTHS), ModelOptions())
    peak = rollout_peak(fake, Sizes(completions=6, num_generations=3, prompt=100, completion=200))
    assert peak.cache == pytest.approx(6 * 63 * 2 * LAYERS * KV_HEADS * HEAD * 2, abs=2000)


def test_every_part_of_a_micro_batch_is_affine_in_its_sequences(fake):
    def parts(count: int) -> dict[str, tuple[int, int, int]]:
        peaks = training_peaks(fake, Sizes(count, 4, 512, 1536), tuple(LOSSES))
        return {name: (p.forward, p.kept + p.loss, p.backward) for name, p in peaks.items()}

    few, more, most = parts(4), parts(8), parts(16)
    for name in LOSSES:
        for a, b, c in zip(few[name], more[name], most[name], strict=True):
            assert c == pytest.approx(b + 2 * (b - a), rel=1e-3)


def test_losses_hold_what_their_logits_are(fake):
    """In numbers of [tokens, V] in bfloat16: both dtypes of a chunk aside, the linear path holds none."""
    count = 16
    loss = {n: p.loss for n, p in training_peaks(fake, Sizes(count, 4, 512, 1536), tuple(LOSSES)).items()}
    logits = count * 1536 * WIDTHS["vocab_size"] * 2
    assert loss["logits"] / logits == pytest.approx(1.0, abs=0.05)
    assert loss["eager"] / logits == pytest.approx(6.0, abs=0.1)  # three of float32
    assert loss["linear"] < 0.3 * logits and loss["trl"] < 0.2 * logits


def test_gradients_are_there_before_and_after(fake):
    """As in all micro-batches of a step but the first: nothing that stays is counted twice, or left behind."""
    before = fake.live.now
    training_peaks(fake, Sizes(2, 2, 16, 16), ("linear",))
    assert fake.live.now == before == fake.weights + 2 * fake.adapters
