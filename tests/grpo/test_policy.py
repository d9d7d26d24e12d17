"""The policy's log-probabilities are those of the plain model, whatever the padding and the sharing of prompts."""

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from grpo.batch import TrainSequence, collate
from grpo.config import TrainConfig
from grpo.errors import InputError
from grpo.loss_path import batch_loss
from grpo.merging import merged
from grpo.policy import end_of_sequence_ids, four_bits, load_policy, make_policy
from grpo.rollout import sample
from grpo_kernels import token_logps
from tests.grpo.conftest import CHARACTERS, EOS, PAD, character_tokenizer, task, tiny_model, tiny_policy

KINDS = ["llama", "qwen2", "gpt2"]


def plain_logps(policy, prompt: tuple[int, ...], completion: tuple[int, ...]) -> torch.Tensor:
    """[T], of one sequence without padding, cache or position ids."""
    ids = torch.tensor([prompt + completion])
    logps = policy.model(input_ids=ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    return logps.gather(-1, torch.tensor(completion)[:, None])[:, 0]


def batch_logps(policy, sequences, pad=PAD) -> torch.Tensor:
    batch = collate(sequences, pad)
    return token_logps(policy.logits(batch), batch.completion_ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("longest", [1, 5, 9])
def test_left_padding_does_not_change_log_probabilities(kind, longest):
    policy, completion = tiny_policy(kind), (6, 7, EOS)
    sequences = [TrainSequence((3, 8, 4, 9, 5), completion, 1.0), TrainSequence((4,) * longest, (5,), 1.0)]
    expected = plain_logps(policy, (3, 8, 4, 9, 5), completion)
    torch.testing.assert_close(batch_logps(policy, sequences)[0], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_sharing_a_prompt_changes_neither_log_probabilities_nor_gradients(kind):
    prompts = [(3, 8, 4, 9, 5), (7,), (6, 5, 4)]
    completions = [(6, 7, EOS), (4,), (PAD, 9)]
    sequences = [TrainSequence(p, c, 1.0) for p in prompts for c in completions]
    shared, plain = tiny_policy(kind), tiny_policy(kind)
    got = batch_logps(shared, sequences)[collate(sequences, PAD).completion_mask]
    expected = torch.cat([plain_logps(plain, s.prompt_ids, s.completion_ids) for s in sequences])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5)
    got.square().sum().backward()
    expected.square().sum().backward()
    for a, b in zip(shared.parameters(), plain.parameters(), strict=True):
        assert b.grad is not None and b.grad.abs().max() > 0
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_prompts_used_several_times_are_run_once():
    policy = tiny_policy()
    widths = []
    layer = policy.model.get_base_model().model.layers[0]
    layer.register_forward_pre_hook(lambda _, args: widths.append(tuple(args[0].shape[:2])))
    batch_logps(policy, [TrainSequence((3, 8, 4, 9), (5, 6), 1.0)] * 8)
    assert widths == [(1, 3), (8, 2)]


def test_the_reference_is_the_base_model_without_gradients():
    policy, base = tiny_policy(), tiny_model("qwen2")
    batch = collate([TrainSequence((3, 4), (5, 6), 1.0)], PAD)
    with policy.as_reference():
        reference = policy.logits(batch)
    assert not reference.requires_grad
    ids = torch.tensor([[3, 4, 5, 6]])
    torch.testing.assert_close(reference, base(input_ids=ids).logits[:, 1:-1], rtol=0, atol=1e-5)
    assert (policy.logits(batch) - reference).abs().max() > 1e-2


def test_new_adapters_do_nothing_and_only_they_are_trained():
    policy = tiny_policy(trained=False)
    batch = collate([TrainSequence((3, 4), (5, 6), 1.0)], PAD)
    with policy.as_reference():
        reference = policy.logits(batch)
    assert torch.equal(policy.logits(batch), reference)
    names = {name for name, p in policy.model.named_parameters() if p.requires_grad}
    assert names and all("lora_" in name for name in names)
    assert not any("lm_head" in name for name in names)


def test_adapters_are_float32_on_a_half_precision_base():
    policy = make_policy(tiny_model("llama").to(torch.bfloat16), character_tokenizer(), lora_r=4, lora_alpha=8)
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert policy.model.get_base_model().lm_head.weight.dtype == torch.bfloat16


def test_dropout_is_off():
    model = tiny_model("gpt2")
    assert model.config.resid_pdrop > 0
    policy = make_policy(model.train(), character_tokenizer(), lora_r=4, lora_alpha=8)
    assert not any(module.training for module in policy.model.modules())


def test_every_end_of_sequence_id_is_known():
    model, tokenizer = tiny_model("llama"), character_tokenizer()
    model.generation_config.eos_token_id = [7, 8]
    assert end_of_sequence_ids(model, tokenizer) == {EOS, 7, 8}
    model.config.eos_token_id = model.generation_config.eos_token_id = None
    assert end_of_sequence_ids(model, tokenizer) == {EOS}


def test_sampling_options_that_came_with_the_model_are_forgotten():
    model = tiny_model("llama")
    model.generation_config = GenerationConfig(repetition_penalty=9.0, top_p=0.1, eos_token_id=[EOS, 7])
    policy = make_policy(model, character_tokenizer(), lora_r=4, lora_alpha=8)
    kept = policy.model.get_base_model().generation_config
    assert (kept.repetition_penalty, kept.top_p) == (None, None)
    assert sorted(kept.eos_token_id) == [EOS, 7]


def test_a_tokenizer_without_padding_needs_none():
    tokenizer = character_tokenizer()
    tokenizer.pad_token = None
    policy = make_policy(tiny_model("llama"), tokenizer, lora_r=4, lora_alpha=8)
    assert policy.pad_id == EOS


def save(policy, folder) -> str:
    policy.model.save_pretrained(str(folder), save_embedding_layers=False)
    return str(folder)


def continued(folder: str, **options):
    return make_policy(tiny_model("qwen2"), character_tokenizer(), 4, 8, adapter=folder, **options)


BATCH = collate([TrainSequence((3, 8, 4), (5, 6), 1.0), TrainSequence((3, 8, 4), (7,), 1.0)], PAD)


def test_an_adapter_is_gone_on_with_and_its_frozen_copy_is_the_reference(tmp_path):
    first = tiny_policy("qwen2")
    policy = continued(save(first, tmp_path))
    torch.testing.assert_close(policy.logits(BATCH), first.logits(BATCH))
    start = policy.logits(BATCH)
    with policy.as_reference():
        assert torch.equal(policy.logits(BATCH), start)
        torch.testing.assert_close(policy.logits(BATCH), first.logits(BATCH))
    with policy.as_base():
        assert (policy.logits(BATCH) - first.logits(BATCH)).abs().max() > 1e-2
    before = policy.logits(BATCH).detach()
    for parameter in policy.parameters():
        parameter.data.add_(0.1)
    with policy.as_reference():
        torch.testing.assert_close(policy.logits(BATCH), before)
    assert (policy.logits(BATCH) - before).abs().max() > 1e-2
    assert not any("reference" in n for n, p in policy.model.named_parameters() if p.requires_grad)


def test_dropout_of_an_earlier_training_is_off_unless_asked_for(tmp_path):
    """An adapter trained with dropout 0.1: the gradient's pass is that of the rollout, KL and ratio included."""
    first = make_policy(tiny_model("qwen2"), character_tokenizer(), 4, 8, lora_dropout=0.1)
    for parameter in first.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder = save(first, tmp_path)
    policy = continued(folder)
    with policy.learning():
        learned = policy.logits(BATCH)
    with policy.as_reference():
        assert torch.equal(learned, policy.logits(BATCH))
    asked = continued(folder, lora_dropout=0.5)
    with asked.learning():
        assert (asked.logits(BATCH) - learned).abs().max() > 1e-3
    torch.testing.assert_close(asked.logits(BATCH), learned)


def test_a_folder_without_an_adapter_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no adapter_config.json"):
        continued(str(tmp_path))
    config = tmp_path / "adapter_config.json"
    for content, message in (
        ("[]", "peft_type None; it must be 'LORA'"),
        ('{"peft_type": "IA3"}', "peft_type 'IA3'; it must be 'LORA'"),
        ('{"peft_type": "LORA"}', "there is no adapter_model.safetensors"),
    ):
        config.write_text(content)
        with pytest.raises(InputError, match=message):
            continued(str(tmp_path))
    other = make_policy(tiny_model("gpt2"), character_tokenizer(), 4, 8)
    with pytest.raises(InputError, match="it cannot be put on this model"):
        continued(save(other, tmp_path / "other"))


@pytest.mark.parametrize("adapted", [False, True])
def test_the_reference_moves_towards_the_policy(adapted, tmp_path):
    policy = continued(save(tiny_policy("qwen2"), tmp_path)) if adapted else tiny_policy("qwen2")
    with policy.as_reference():
        start = policy.logits(BATCH)
    policy.sync_reference(0.0)
    with policy.as_reference():
        torch.testing.assert_close(policy.logits(BATCH), start)
    policy.sync_reference(1.0)
    moved = policy.logits(BATCH)
    with policy.as_reference():
        torch.testing.assert_close(policy.logits(BATCH), moved)
    before = [ours.clone() for _, ours, _ in policy._pairs()]
    for parameter in policy.parameters():
        parameter.data.add_(1.0)
    policy.sync_reference(0.25)
    for (_, ours, _), old in zip(policy._pairs(), before, strict=True):
        torch.testing.assert_close(ours, old + 0.25)


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_target_modules": ("q_proj", "embed_tokens")}])
def test_the_reference_starts_at_the_base_whatever_is_adapted(options):
    policy = make_policy(tiny_model("llama"), character_tokenizer(), 4, 8, **options)
    torch.manual_seed(1)
    for parameter in policy.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    with policy.as_base():
        base = policy.logits(BATCH)
    policy.sync_reference(0.0)
    with policy.as_reference():
        torch.testing.assert_close(policy.logits(BATCH), base)
    policy.sync_reference(1.0)
    moved = policy.logits(BATCH)
    with policy.as_reference():
        torch.testing.assert_close(policy.logits(BATCH), moved)
    assert (moved - base).abs().max() > 1e-2


def test_activations_are_computed_again_in_the_gradients_pass_alone():
    policy = make_policy(tiny_model("llama"), character_tokenizer(), 4, 8, gradient_checkpointing=True)
    plain = make_policy(tiny_model("llama"), character_tokenizer(), 4, 8)
    runs = []
    policy.model.get_base_model().model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    for one in (policy, plain):
        torch.manual_seed(0)
        for parameter in one.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        with one.learning():
            logits = one.logits(BATCH)
        token_logps(logits, BATCH.completion_ids).sum().backward()
    assert len(runs) == 2
    for ours, theirs in zip(policy.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def test_lora_variants_are_passed_through():
    rs = make_policy(tiny_model("llama"), character_tokenizer(), 4, 8, use_rslora=True)
    dora = make_policy(tiny_model("llama"), character_tokenizer(), 4, 8, use_dora=True)
    layers = [p.model.get_base_model().model.layers[0].self_attn.q_proj for p in (rs, dora)]
    assert layers[0].scaling["default"] == 8 / 4**0.5
    assert any("magnitude" in name for name, p in dora.model.named_parameters() if p.requires_grad)


def test_small_updates_reach_adapters_after_a_rollout():
    """float32 throughout: 100 steps of 1e-6 change .01 to .0099."""
    policy = make_policy(tiny_model("llama").to(torch.bfloat16), character_tokenizer(), 4, 8)
    sample(policy, [task()], [1.0, 1.0], 3, 8)
    with merged(policy):
        sample(policy, [task()], [1.0, 1.0], 3, 8)
    parameters = policy.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=1e-6, weight_decay=0.0)
    for parameter in parameters:
        parameter.data.fill_(0.01)
    for _ in range(100):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    for parameter in parameters:
        torch.testing.assert_close(parameter.data, torch.full_like(parameter, 0.0099), rtol=0, atol=1e-7)


def test_a_base_in_4_bits_is_sampled_from_and_trained_on(tmp_path):
    """nf4 runs on a CPU too; the adapters are float32, and their gradient is that of the dense model with the weights
    that the quantised ones stand for."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "vocab_size": len(CHARACTERS), "eos_token_id": EOS, "pad_token_id": PAD}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(initializer_range=0.3, **shape)).save_pretrained(tmp_path)
    from bitsandbytes.functional import dequantize_4bit

    config = TrainConfig(model=str(tmp_path), load_in_4bit=True)
    policy = load_policy(str(tmp_path), config, character_tokenizer())
    layer = policy.model.get_base_model().model.layers[0].self_attn.q_proj.base_layer
    assert layer.weight.dtype == torch.uint8 and layer.weight.numel() == 64 * 64 // 2
    assert {p.dtype for p in policy.parameters()} == {torch.float32}
    assert len(sample(policy, [task()], [1.0, 1.0], 3, 8)[0]) == 2
    base = LlamaForCausalLM.from_pretrained(tmp_path)
    for name, module in policy.model.get_base_model().named_modules():
        if name.endswith(".base_layer"):
            values = dequantize_4bit(module.weight.data, module.weight.quant_state)
            base.get_submodule(name.removesuffix(".base_layer")).weight.data = values.float()
    dense = make_policy(base, character_tokenizer(), config.lora_r, config.lora_alpha)
    for ours, theirs in zip(policy.parameters(), dense.parameters(), strict=True):
        torch.nn.init.normal_(ours, std=0.2)
        theirs.data.copy_(ours)
    one_token = collate([TrainSequence((3,), (5,), 1.0)], PAD)
    for batch in (BATCH, one_token):
        for one in (policy, dense):
            one.model.zero_grad()
            with one.learning():
                batch_loss(one, batch, "linear").loss.backward()
        for ours, theirs in zip(policy.parameters(), dense.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4 * theirs.grad.abs().max().item())


def test_4_bits_without_their_library_are_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match="--load-in-4bit needs bitsandbytes: pip install"):
        four_bits(torch.float32)
