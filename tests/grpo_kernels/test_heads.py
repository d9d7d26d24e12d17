"""Heads of transformers models: log-probabilities and gradients are those of the model's own logits, or a refusal."""

import functools

import pytest
import torch
import transformers
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from grpo_kernels import (
    GRPOLossConfig,
    UnsupportedHeadError,
    completion_hidden_states,
    find_lm_head,
    grpo_loss,
    linear_grpo_loss,
    linear_token_logps,
    matches_model_logits,
    token_logps,
)

VOCABULARY, WIDTH = 61, 16
COMPLETION = 4
GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32}
# What a family sets besides the sizes; soft-caps and scales are such that leaving them out would show.
FAMILIES = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": 8},
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 3.0},
    "Gemma3": {"head_dim": 8, "final_logit_softcapping": 3.0},
    "Mistral": {},
    "Phi": {},  # its head has a bias
    "Phi3": {},
    "Cohere": {"logit_scale": 0.25},
    "Cohere2": {"logit_scale": 0.25},
    "Granite": {"logits_scaling": 4.0},
    "HyperCLOVAX": {"logits_scaling": 0.25},  # multiplies by it, where Granite divides
    "GPT2": GPT2,
    "GPTNeoX": {},
}
# Config and model classes whose names are not the family's with "Config" and "ForCausalLM" behind it.
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
MODELS = {"GPT2": "GPT2LMHeadModel"}
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip

IDS = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(2))
MASK = torch.tensor([[1] * 9, [0] * 2 + [1] * 7])


def tiny_model(family="Llama", tied=False, **options):
    """A random model of two layers in evaluation mode, whose logits are of the order of 1."""
    sizes = {name: value for name, value in SIZES.items() if family != "GPT2" or name.endswith(("_size", "_id"))}
    sizes = {**sizes, **FAMILIES[family], "tie_word_embeddings": tied, **options}
    if family == "GPT2":
        sizes.pop("hidden_size"), sizes.pop("intermediate_size")
    config = getattr(transformers, CONFIGS.get(family, family + "Config"))(**sizes)
    torch.manual_seed(0)
    model = getattr(transformers, MODELS.get(family, family + "ForCausalLM"))(config).eval()
    bias = model.get_output_embeddings().bias
    if bias is not None:
        nn.init.normal_(bias)
    return model.requires_grad_(False)


def with_lora(model, **options):
    """All linear layers but the head adapted, by adapters that are not at their start, where they do nothing."""
    options = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": "all-linear", **options}
    wrapped = get_peft_model(model, LoraConfig(**options)).eval()
    torch.manual_seed(1)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, std=0.2)
    return wrapped


def batch(cached=0):
    """Ids [2, 9], the second row padded on the left by two; without the first `cached` columns of ids."""
    return IDS[:, cached:], MASK


def own_logits(model):
    """[2, COMPLETION, V], of the model itself."""
    ids, mask = batch()
    position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=position_ids, use_cache=False).logits
    return logits[:, -COMPLETION - 1 : -1].clone()


def hidden_states(model, **options):
    return completion_hidden_states(model, *batch(), COMPLETION, **options)


def linear_logps(model, **options):
    head = find_lm_head(model)
    return linear_token_logps(
        hidden_states(model, **options), head.weight, batch()[0][:, -COMPLETION:], 0.7, **head.options
    )


def own_logps(model):
    return token_logps(own_logits(model), batch()[0][:, -COMPLETION:], 0.7)


def gradients(model, logps):
    """Of every trainable parameter, for a loss that weighs every token differently."""
    weights = torch.linspace(-1, 1, logps.numel()).view_as(logps)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return dict(zip(parameters, torch.autograd.grad((logps * weights).sum(), list(parameters.values())), strict=True))


def assert_same(model, family="Llama"):
    """Log-probabilities, and gradients if there are trainable parameters."""
    assert matches_model_logits(model)
    linear, own = linear_logps(model), own_logps(model)
    torch.testing.assert_close(linear, own, rtol=0, atol=1e-5)
    if any(p.requires_grad for p in model.parameters()):
        got, expected = gradients(model, linear), gradients(model, own)
        largest = max(grad.abs().max() for grad in expected.values())
        assert largest > 1e-2
        for name, grad in expected.items():
            torch.testing.assert_close(got[name], grad, rtol=0, atol=1e-5 * max(1.0, largest.item()), msg=name)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families(family, tied):
    model = tiny_model(family, tied)
    head, embeddings = find_lm_head(model), model.get_input_embeddings()
    assert (head.weight is embeddings.weight) == tied
    assert_same(model)
    assert_same(with_lora(model))


def test_heads_have_what_their_family_gives_them():
    heads = {family: find_lm_head(tiny_model(family)) for family in FAMILIES}
    assert {family for family, head in heads.items() if head.bias is not None} == {"Phi"}
    assert {family: head.softcap for family, head in heads.items() if head.softcap} == {"Gemma2": 3.0, "Gemma3": 3.0}
    scales = {family: head.logit_scale for family, head in heads.items() if head.logit_scale != 1.0}
    assert scales == {"Cohere": 0.25, "Cohere2": 0.25, "Granite": 0.25, "HyperCLOVAX": 0.25}


@pytest.mark.parametrize("family", ["Gemma2", "Granite", "Phi"])
def test_trainable_heads(family):
    """A whole model in training, tied where it can be: the head's gradients are the model's own too."""
    assert_same(tiny_model(family, tied=family == "Gemma2").requires_grad_(True))


@pytest.mark.parametrize("loss_type", ["dapo", "vespo"])
def test_the_loss_is_that_of_the_models_logits(loss_type):
    model = with_lora(tiny_model("Gemma2"))
    ids, advantages = batch()[0][:, -COMPLETION:], torch.tensor([1.0, -0.5])
    head, config = find_lm_head(model), GRPOLossConfig(loss_type=loss_type)
    linear = linear_grpo_loss(hidden_states(model), head.weight, ids, advantages, config=config, **head.options)
    own = grpo_loss(own_logits(model), ids, advantages, config=config)
    torch.testing.assert_close(linear.loss, own.loss)
    torch.testing.assert_close(linear.logps, own.logps, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Gemma2"])
def test_a_prompt_may_come_from_a_cache(family):
    """Only the tokens that are not in the cache are run; gradients reach the prompt through it."""
    model = with_lora(tiny_model(family))
    whole = linear_logps(model)
    prompt = 4
    ids, mask = batch()
    output = model(
        input_ids=ids[:, :prompt], attention_mask=mask[:, :prompt], use_cache=True,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0)[:, :prompt],
    )  # fmt: skip
    name = next(name for name in ("cache", "past_key_values") if name in output)
    hidden = completion_hidden_states(model, *batch(cached=prompt), COMPLETION, use_cache=True, **{name: output[name]})
    head = find_lm_head(model)
    cached = linear_token_logps(hidden, head.weight, ids[:, -COMPLETION:], 0.7, **head.options)
    torch.testing.assert_close(cached, whole, rtol=0, atol=1e-5)
    got, expected = gradients(model, cached), gradients(model, whole)
    for grad, other in zip(got.values(), expected.values(), strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-4, atol=1e-4)


def test_gradient_checkpointing():
    model = with_lora(tiny_model())
    expected = gradients(model, own_logps(model))
    runs = []
    model.get_base_model().model.layers[0].mlp.register_forward_pre_hook(lambda *_: runs.append(1))
    model.gradient_checkpointing_enable()
    model.train()
    got = gradients(model, linear_logps(model))
    assert len(runs) == 2
    for name, grad in expected.items():
        torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=1e-5)


@pytest.fixture
def mesh():
    """One process of its own, in which FSDP2 shards into one part."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_fsdp2_shards_the_layers_and_the_backbone(mesh, tied):
    plain, model = with_lora(tiny_model(tied=tied)), with_lora(tiny_model(tied=tied))
    backbone = model.get_base_model().model
    for layer in backbone.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(backbone, mesh=mesh)
    assert matches_model_logits(model)
    logps = linear_logps(model)
    torch.testing.assert_close(logps, own_logps(plain), rtol=0, atol=1e-5)
    (logps * torch.linspace(-1, 1, logps.numel()).view_as(logps)).sum().backward()
    parameters = dict(model.named_parameters())
    for name, grad in gradients(plain, own_logps(plain)).items():
        torch.testing.assert_close(parameters[name].grad.full_tensor(), grad, rtol=1e-4, atol=1e-5)


def test_a_trainable_head_that_fsdp2_shards_is_refused_by_name(mesh):
    model = fully_shard(tiny_model().requires_grad_(True), mesh=mesh)
    with pytest.raises(UnsupportedHeadError, match="lm_head.weight is a DTensor, .* leave lm_head out of the sharding"):
        find_lm_head(model)


def test_adapters_are_as_the_model_has_them():
    model = with_lora(tiny_model())
    base = linear_logps(tiny_model())
    with model.disable_adapter():
        torch.testing.assert_close(linear_logps(model), base, rtol=0, atol=1e-5)
    assert (linear_logps(model) - base).abs().max() > 1e-2


def test_no_logits_are_computed():
    model = with_lora(tiny_model())
    head = model.get_base_model().lm_head
    head.forward = None
    assert hidden_states(model).shape == (2, COMPLETION, WIDTH)


def test_hidden_states_come_in_the_heads_dtype():
    """A head that was cast to float32 on a half-precision backbone."""
    model = tiny_model().to(torch.bfloat16)
    assert hidden_states(model).dtype == torch.bfloat16
    assert matches_model_logits(model)
    model.lm_head.float()
    model.lm_head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    assert hidden_states(model).dtype == torch.float32
    assert matches_model_logits(model)
    torch.testing.assert_close(linear_logps(model), own_logps(model), rtol=0, atol=1e-5)


def test_everything_is_one_graph_under_the_callers_compile():
    model = with_lora(tiny_model())
    expected = linear_logps(model)
    torch._dynamo.reset()
    logps = torch.compile(linear_logps, backend="aot_eager", fullgraph=True)(model)
    torch.testing.assert_close(logps, expected, rtol=0, atol=1e-5)
    got = gradients(model, logps)
    for name, grad in gradients(model, expected).items():
        torch.testing.assert_close(got[name], grad, rtol=1e-4, atol=1e-4)


def test_autocast():
    model = with_lora(tiny_model())
    plain = linear_logps(model)
    with torch.autocast("cpu", torch.bfloat16):
        assert matches_model_logits(model)
        logps = linear_logps(model)
    assert logps.dtype == torch.float32
    torch.testing.assert_close(logps, plain, rtol=0, atol=0.1)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_head_in_modules_to_save_is_its_active_copy(tied):
    model = with_lora(tiny_model(tied=tied), modules_to_save=["lm_head"])
    wrapper = model.get_base_model().lm_head
    copy, original = wrapper.modules_to_save["default"], wrapper.original_module
    nn.init.normal_(copy.weight)
    assert find_lm_head(model).weight is copy.weight and copy.weight.requires_grad
    assert_same(model)
    with model.disable_adapter():
        assert find_lm_head(model).weight is original.weight
        torch.testing.assert_close(linear_logps(model), own_logps(model), rtol=0, atol=1e-5)
    model.add_adapter("other", LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
    model.set_adapter("other")
    torch.testing.assert_close(linear_logps(model), own_logps(model), rtol=0, atol=1e-5)


class Quantised(nn.Linear):
    """A layer like those of bitsandbytes: packed weights, and a product of its own."""

    def __init__(self):
        super().__init__(WIDTH, VOCABULARY, bias=False)
        self.weight = nn.Parameter(torch.zeros(VOCABULARY * WIDTH // 2, 1, dtype=torch.uint8), requires_grad=False)

    def forward(self, hidden):
        return hidden.new_zeros(*hidden.shape[:-1], VOCABULARY)


def with_head(head):
    model = tiny_model()
    model.lm_head = head
    return model


def with_weight(weight):
    model = tiny_model()
    model.lm_head.weight = nn.Parameter(weight, requires_grad=False)
    return model


REFUSED = {
    "lora": (lambda: with_lora(tiny_model(), target_modules=["q_proj", "lm_head"]), "lm_head carries a PEFT adapter"),
    "trainable tokens": (
        lambda: with_lora(tiny_model(tied=True), trainable_token_indices=[3, 4]), "lm_head carries a PEFT adapter",
    ),
    "quantised layer": (lambda: with_head(Quantised()), "lm_head is a Quantised, .* keep it out of the quantisation"),
    "quantised weight": (
        lambda: with_weight(torch.zeros(VOCABULARY, WIDTH, dtype=torch.int8)), "lm_head.weight is a quantised .*int8",
    ),
    "not linear": (lambda: with_head(nn.Sequential(nn.Linear(WIDTH, VOCABULARY))), "lm_head is a Sequential"),
    "empty shard": (lambda: with_weight(torch.zeros(0)), r"lm_head.weight has shape \[0\] here, a shard .* gather"),
    "offloaded": (
        lambda: with_weight(torch.zeros(VOCABULARY, WIDTH, device="meta")), "lm_head.weight is on the meta device",
    ),
    "backbone": (lambda: tiny_model().model, "LlamaModel has no get_output_embeddings"),
    "wrapped": (lambda: nn.Sequential(tiny_model()), "Sequential has no get_output_embeddings"),
    "prompt tuning": (
        lambda: get_peft_model(tiny_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)),
        "PromptTuningConfig adds prompt tokens",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_a_plain_head_is_refused_by_name(case):
    make, message = REFUSED[case]
    model = make()
    for function in (find_lm_head, hidden_states, matches_model_logits):
        with pytest.raises(UnsupportedHeadError, match=message) as error:
            function(model)
        assert isinstance(error.value, ValueError) and "grpo_loss" in str(error.value)


def test_an_encoder_decoder_is_refused():
    config = transformers.BartConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
    )  # fmt: skip
    with pytest.raises(UnsupportedHeadError, match="BartForConditionalGeneration has no decoder-only backbone"):
        hidden_states(transformers.BartForConditionalGeneration(config))


def changed(change):
    """A Llama whose forward pass ends in a way that its configuration does not tell."""
    model = tiny_model()
    forward = model.forward

    @functools.wraps(forward)
    def other_forward(*arguments, **options):
        output = forward(*arguments, **options)
        output.logits = change(output.logits)
        return output

    model.forward = other_forward
    return model


@pytest.mark.parametrize(
    "change",
    [
        lambda logits: logits * 1.1,
        lambda logits: 50 * torch.tanh(logits / 50),
        lambda logits: logits[..., :-1],
        lambda logits: logits + torch.linspace(0, 1, VOCABULARY),
    ],
    ids=["scale", "softcap", "vocabulary", "bias"],
)
def test_an_unknown_end_of_the_forward_pass_is_noticed(change):
    assert matches_model_logits(changed(lambda logits: logits))
    assert not matches_model_logits(changed(change))


def test_a_layer_between_backbone_and_head_is_noticed():
    model = tiny_model()
    model.lm_head.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 1.1,))
    assert not matches_model_logits(model)


def test_the_check_leaves_the_model_as_it_was():
    model = with_lora(tiny_model("GPT2"), lora_dropout=0.5)
    model.train()
    model.get_base_model().transformer.h[1].eval()
    modes = [module.training for module in model.modules()]
    assert matches_model_logits(model)
    assert modes == [module.training for module in model.modules()]
    assert not model.get_base_model().lm_head._forward_hooks
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("length", [0, 9])
def test_a_completion_that_does_not_fit_is_refused(length):
    with pytest.raises(ValueError, match=f"completion_length is {length}; allowed: 1 to 8"):
        completion_hidden_states(tiny_model(), *batch(), length)
