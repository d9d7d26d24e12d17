"""From prompts to tokens."""

import pytest
from tokenizers.processors import TemplateProcessing

from grpo.data.loaders import Problem
from grpo.data.prompts import build_tasks, encode
from grpo.errors import InputError
from tests.grpo.conftest import BOS, EOS, TEMPLATE, character_tokenizer

CHAT = [{"role": "system", "content": "x"}, {"role": "user", "content": "1+2"}]


def adding_tokenizer():
    """One that puts special tokens around every text, as Llama's and T5's do."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    return tokenizer


def test_text_gets_one_bos_and_no_eos():
    tokenizer = adding_tokenizer()
    assert tokenizer("1")["input_ids"] == [BOS, 4, EOS]
    assert encode("1", tokenizer) == [BOS, 4]


def test_messages_go_through_the_chat_template_and_get_one_bos():
    tokenizer = adding_tokenizer()
    assert tokenizer.decode(encode(CHAT, tokenizer)) == "<bos>sx\nu1+2\na"


def test_text_that_starts_with_bos_keeps_one():
    tokenizer = adding_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = None
    assert tokenizer("<bos>")["input_ids"] == [BOS, BOS, EOS]
    assert encode("<bos>", tokenizer) == [BOS]


def test_messages_without_a_chat_template_are_refused():
    with pytest.raises(InputError, match="no chat template"):
        encode(CHAT, character_tokenizer())


def test_what_the_template_refuses_is_reported():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="data line 3.*roles must alternate"):
        encode(CHAT, tokenizer, "data line 3")


def test_tasks_know_their_system_prompt_and_columns():
    tokenizer = adding_tokenizer()
    (task,) = build_tasks([Problem("data line 1", CHAT, {"answer": 3})], tokenizer, ("numeric@1",), 4, 64)
    assert (task.id, task.system_prompt, task.columns) == ("data line 1", "x", {"answer": 3})


def test_a_prompt_that_leaves_no_room_for_its_completion_is_refused():
    problem = Problem("data line 7", "1" * 12, {})
    assert build_tasks([problem], character_tokenizer(), (), 4, 16)
    assert build_tasks([problem], character_tokenizer(), (), 4, None)
    with pytest.raises(InputError, match="data line 7: the prompt has 12 tokens .* 5 passes the model's maximum of 16"):
        build_tasks([problem], character_tokenizer(), (), 5, 16)
