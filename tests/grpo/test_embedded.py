"""The model that ships, and the script that makes it."""

import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.data.arithmetic import addition_problems
from grpo.embedded import MODEL_PATH, build

FILES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(MODEL_PATH)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL_PATH)


@pytest.fixture
def fewer_problems(monkeypatch):
    """Twenty problems a split, to build in a moment."""
    monkeypatch.setattr(build, "addition_problems", lambda split: addition_problems(split)[:20])


def test_the_shipped_files_are_small():
    files = list(MODEL_PATH.iterdir())
    assert {file.name for file in files} == FILES
    assert sum(file.stat().st_size for file in files) <= 2_500_000


def test_the_shipped_model_is_what_the_script_makes(model, tokenizer):
    """All but the weights, which depend on the machine that trained them."""
    assert tokenizer.backend_tokenizer.to_str() == build.build_tokenizer().backend_tokenizer.to_str()
    made = build.build_model(build.build_tokenizer(), seed=0)
    shape = {name: (parameter.shape, parameter.dtype) for name, parameter in made.named_parameters()}
    assert {name: (parameter.shape, parameter.dtype) for name, parameter in model.named_parameters()} == shape
    assert {dtype for _, dtype in shape.values()} == {torch.float32}
    assert model.config.initializer_range == made.config.initializer_range


def test_the_tokenizer_gives_one_token_a_character_and_the_text_back(tokenizer):
    text = "12+34=46\nYes, {a} ~ b!  c"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    everything = "".join(build.CHARACTERS)
    assert len(set(tokenizer(everything)["input_ids"])) == len(everything) == 96
    assert tokenizer.decode(tokenizer(everything)["input_ids"]) == everything


def test_special_tokens(model, tokenizer):
    assert (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) == ("<pad>", "<eos>", None)
    assert len({tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}) == 3
    assert tokenizer("é")["input_ids"] == [tokenizer.unk_token_id]
    for config in (model.config, model.generation_config):
        assert (config.pad_token_id, config.eos_token_id) == (tokenizer.pad_token_id, tokenizer.eos_token_id)
    assert model.config.vocab_size == len(tokenizer)


def test_left_padding_changes_no_completion(model, tokenizer):
    prompts = [problem["prompt"] for problem in addition_problems("held_out")[:20]]
    longer = tokenizer(["0000" + prompts[0], *prompts], padding=True, return_tensors="pt")
    assert longer["attention_mask"][1].tolist() == [0] * 4 + [1] * 6
    alone = tokenizer(prompts, return_tensors="pt")
    padded = model.generate(**longer, max_new_tokens=4, do_sample=False)[1:, 10:]
    assert padded.tolist() == model.generate(**alone, max_new_tokens=4, do_sample=False)[:, 6:].tolist()


def test_held_out_accuracy_is_the_model_cards_and_leaves_room(model, tokenizer):
    accuracy = build.greedy_accuracy(model, tokenizer, addition_problems("held_out"))
    stated = re.search(r"held-out sums.*: ([\d.]+)%", (MODEL_PATH / "README.md").read_text(encoding="utf-8"))
    assert stated is not None
    assert accuracy == pytest.approx(float(stated[1]) / 100, abs=0.01)
    assert 0.3 <= accuracy <= 0.5


def test_greedy_accuracy_wants_the_whole_answer_and_its_end(model, tokenizer):
    problems = addition_problems("held_out")[:30]
    ids = tokenizer([problem["prompt"] for problem in problems], return_tensors="pt")
    sequences = model.generate(**ids, max_new_tokens=4, do_sample=False)[:, 6:]
    answers = [tokenizer.decode(row, skip_special_tokens=True) for row in sequences]
    ended = [(problem, answer) for problem, answer in zip(problems, answers, strict=True) if len(answer) <= 3]
    assert len(ended) >= 20
    own = [{**problem, "answer": answer} for problem, answer in ended]
    cut = [{**problem, "answer": answer[:-1]} for problem, answer in ended]
    assert build.greedy_accuracy(model, tokenizer, own, batch_size=7) == 1.0
    assert build.greedy_accuracy(model, tokenizer, cut) == 0.0
    assert build.greedy_accuracy(model, tokenizer, own[:1] + cut[:3]) == 0.25


@pytest.mark.parametrize("training", [True, False])
def test_measuring_accuracy_leaves_the_model_in_its_mode(training):
    tokenizer = build.build_tokenizer()
    model = build.build_model(tokenizer, seed=0).train(training)
    build.greedy_accuracy(model, tokenizer, addition_problems("held_out")[:2])
    assert model.training is training


def test_building_is_decided_by_the_seed(tmp_path, fewer_problems):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build.build(tmp_path / name, seed, target=1.0, max_steps=3)
        assert {file.name for file in (tmp_path / name).iterdir()} == FILES
    a, b, c = (tmp_path.joinpath(name, "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_a_built_folder_loads_and_its_card_says_what_it_is(tmp_path, fewer_problems):
    accuracy = build.build(tmp_path, seed=3, target=1.0, max_steps=4)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert build.greedy_accuracy(model, tokenizer, addition_problems("held_out")[:20]) == accuracy
    assert (tokenizer.padding_side, tokenizer.model_max_length) == ("left", model.config.max_position_embeddings)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert f"{model.num_parameters():,}\nparameters" in card
    assert "4 supervised steps on the 20 sums" in card
    assert "seed 3," in card


def test_the_warm_start_stops_at_its_target(monkeypatch):
    tokenizer = build.build_tokenizer()
    model = build.build_model(tokenizer, seed=0)
    found = iter([0.1, 0.35])
    monkeypatch.setattr(build, "greedy_accuracy", lambda *_: next(found))
    assert build.warm_start(model, tokenizer, seed=0, target=0.35, max_steps=100) == 20


def test_held_out_problems_have_no_part_in_the_warm_start(monkeypatch):
    tokenizer = build.build_tokenizer()
    model = build.build_model(tokenizer, seed=0)
    trained, probed = [], []

    def train_supervised(model, examples, pad, config, on_step):
        trained.extend(examples)
        on_step(build.STEPS_BETWEEN_CHECKS, 0.0)
        return [0.0]

    monkeypatch.setattr(build, "train_supervised", train_supervised)
    monkeypatch.setattr(build, "greedy_accuracy", lambda model, tokenizer, probes: probed.extend(probes) or 0.0)
    build.warm_start(model, tokenizer, seed=0)
    taught = {tokenizer.decode(example.prompt_ids) for example in trained}
    held_out = {problem["prompt"] for problem in addition_problems("held_out")}
    assert taught == {problem["prompt"] for problem in addition_problems("warm_start")}
    assert len(probed) == build.PROBLEMS_PER_CHECK
    assert not {problem["prompt"] for problem in probed} & (held_out | taught)
    assert trained[0].completion_ids[-1] == tokenizer.eos_token_id


def test_the_command_prints_the_accuracy(tmp_path, monkeypatch, capsys):
    threads = torch.get_num_threads()
    calls = []

    def built(folder, seed) -> float:
        calls.append((folder, seed, torch.get_num_threads()))
        return 0.4125

    monkeypatch.setattr(build, "build", built)
    torch.set_num_threads(2)
    try:
        build.main(["--output-dir", str(tmp_path), "--seed", "7"])
        build.main([])
    finally:
        torch.set_num_threads(threads)
    assert calls == [(tmp_path, 7, 1), (MODEL_PATH, build.DEFAULT_SEED, 1)]
    assert capsys.readouterr().out.startswith(f"held-out greedy accuracy 41.2%; written to {tmp_path}\n")
