"""A merged model is the policy, for plain transformers."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from grpo.cli import main
from tests.grpo.conftest import character_tokenizer, tiny_model, tiny_policy


@pytest.fixture
def adapter(model_folder, tmp_path):
    """An adapter that is not at its start, beside the model of `model_folder`."""
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(model_folder)
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    model.save_pretrained(str(tmp_path / "adapter"))
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        return tmp_path / "adapter", ids, model(input_ids=ids).logits


def test_the_merged_model_loads_without_peft(adapter, tmp_path, capsys):
    folder, ids, expected = adapter
    assert main(["merge", str(folder), str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged(input_ids=ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged")("1+2=")["input_ids"]
    assert "merged model written" in capsys.readouterr().out
    assert not list(tmp_path.glob(".*"))


def test_a_dtype_can_be_chosen(adapter, tmp_path):
    assert main(["merge", str(adapter[0]), str(tmp_path / "merged"), "--dtype", "bfloat16"]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert merged.dtype == torch.bfloat16


def test_an_adapted_head_is_untied_from_the_embeddings(tmp_path):
    from peft import LoraConfig, get_peft_model

    config = tiny_model("llama").config
    config.tie_word_embeddings = True
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    character_tokenizer().save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    assert base.lm_head.weight is base.model.embed_tokens.weight
    lora = LoraConfig(r=4, target_modules=["lm_head", "q_proj"], init_lora_weights=False)
    model = get_peft_model(base, lora).eval()
    model.save_pretrained(str(tmp_path / "adapter"))
    ids = torch.tensor([[5, 6, 7, 8]])
    assert main(["merge", str(tmp_path / "adapter"), str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-4, atol=1e-4)


def changed(folder, copy, name, **values):
    """A copy of the folder, with other values in one of its JSON files."""
    shutil.copytree(folder, copy)
    (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | values))
    return copy


def test_what_cannot_be_merged_is_one_line(adapter, model_folder, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    quantised = changed(model_folder, tmp_path / "4-bit", "config.json", quantization_config={"load_in_4bit": True})
    nameless = changed(adapter[0], tmp_path / "nameless", "adapter_config.json", base_model_name_or_path=None)
    ia3 = changed(adapter[0], tmp_path / "ia3", "adapter_config.json", peft_type="IA3")
    empty = changed(adapter[0], tmp_path / "empty", "adapter_config.json")
    (empty / "adapter_model.safetensors").unlink()
    other = tiny_policy("gpt2")
    other.model.save_pretrained(str(tmp_path / "other"))
    base = json.loads((adapter[0] / "adapter_config.json").read_text())["base_model_name_or_path"]
    for words, message in (
        ([str(tmp_path / "nothing"), str(tmp_path / "out")], "there is no adapter_config.json"),
        ([str(nameless), str(tmp_path / "out")], "does not name its base model: give --model"),
        ([str(ia3), str(tmp_path / "out")], "has peft_type 'IA3'; it must be 'LORA'"),
        ([str(empty), str(tmp_path / "out")], "there is no adapter_model.safetensors"),
        ([str(adapter[0]), str(tmp_path / "out"), "--model", str(quantised)], "is quantised"),
        ([str(adapter[0]), str(tmp_path / "full")], "is not empty"),
        ([str(adapter[0]), str(tmp_path / "full/file")], "is a file"),
        ([str(adapter[0]), str(tmp_path / "full/file/out")], "cannot be written"),
        ([str(adapter[0]), str(tmp_path / "out"), "--model", str(tmp_path / "none")], "cannot be loaded"),
        (
            [str(tmp_path / "other"), str(tmp_path / "out"), "--model", base],
            "cannot be merged",
        ),
    ):
        assert main(["merge", *words]) == 2
        error = capsys.readouterr().err
        assert message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))
