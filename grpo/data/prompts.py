"""From a problem to a task: the chat template, the tokens, and the checks that the model can be asked it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo.data.loaders import Problem
from grpo.errors import InputError
from grpo.groups import Prompt, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def build_tasks(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    rules: tuple[str, ...],
    max_completion_length: int,
    max_length: int | None,
) -> list[Task]:
    """The problems as tasks; raises InputError for a prompt that with a completion passes `max_length`."""
    tasks = []
    for problem in problems:
        ids = encode(problem.prompt, tokenizer, problem.where)
        if max_length is not None and len(ids) + max_completion_length > max_length:
            raise InputError(
                f"{problem.where}: the prompt has {len(ids)} tokens and with --max-completion-length "
                f"{max_completion_length} passes the model's maximum of {max_length}: shorten or drop that "
                "row, or lower --max-completion-length"
            )
        tasks.append(
            Task(
                id=problem.where,
                system_prompt=system_prompt(problem.prompt),
                rules=rules,
                prompt=problem.prompt,
                prompt_ids=tuple(ids),
                columns=problem.columns,
            )
        )
    return tasks


def encode(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, where: str = "prompt") -> list[int]:
    """Token ids of a prompt, with at most one beginning-of-sequence token and no end-of-sequence token added.

    Messages go through the chat template, which writes special tokens itself; text gets the tokenizer's own.
    """
    if isinstance(prompt, str):
        ids = list(tokenizer(prompt)["input_ids"])
        ends_itself = tokenizer.eos_token is not None and prompt.endswith(str(tokenizer.eos_token))
        if ids[-1:] == [tokenizer.eos_token_id] and not ends_itself:
            ids.pop()
    else:
        ids = list(tokenizer(_render(prompt, tokenizer, where), add_special_tokens=False)["input_ids"])
    if tokenizer.bos_token_id is not None and ids[:2] == [tokenizer.bos_token_id] * 2:
        ids = ids[1:]
    if not ids:
        raise InputError(f"{where}: the prompt has no tokens")
    return ids


def system_prompt(prompt: Prompt) -> str | None:
    """The system message of a prompt that has one."""
    if isinstance(prompt, str):
        return None
    return next((message["content"] for message in prompt if message["role"] == "system"), None)


def prompt_text(prompt: Prompt) -> str:
    """What a person reads of a prompt: its text, or its last message."""
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def _render(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, where: str) -> str:
    if tokenizer.chat_template is None:
        raise InputError(f"{where}: the prompt is chat messages and the model has no chat template: give it as text")
    try:
        return str(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False))
    except Exception as error:  # a template is a program: it may refuse a role or an order of roles in any way
        raise InputError(f"{where}: the model's chat template refuses the messages: {error}") from error
