"""Functions of other forms as reward functions, told by their parameters.

- `f(completion, COLUMN, ...)`: one completion and values of the data columns that it names, for a number.
- verl's `compute_score(data_source, solution_str, ground_truth, extra_info=None)`, for a number or a dict with "score":
  its other numbers are parts. `data_source`, `ground_truth` and `extra_info` are columns; ground_truth may also be in
  a column `reward_model`, as in verl's data.
- Anything else is TRL's form: lists of `prompts`, `completions` and columns, for a list. Completions are text; where a
  function wants messages, as TRL gives it with chat prompts, decorate it with `conversational`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

RESERVED = ("prompts", "completions", "completion_ids")
VERL = ("data_source", "solution_str", "ground_truth")


def adapted(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function in TRL's form; functions that have it are returned as they are."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return function
    if "completions" in parameters:
        return function
    if "solution_str" in parameters:
        return _of_verl(function)
    return _of_sample(function, parameters) if "completion" in parameters else function


def conversational(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function of TRL's form that wants each completion as [{"role": "assistant", "content": text}]."""

    @functools.wraps(function)
    def messages(*, completions: Sequence[str], **given: Any) -> Any:
        return function(completions=[[{"role": "assistant", "content": text}] for text in completions], **given)

    return messages


def _of_sample(function: Callable[..., Any], parameters: Any) -> Callable[..., Any]:
    columns = [name for name in parameters.values() if name.name not in ("completion", "prompt")]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in columns)
    named = [p for p in columns if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]

    @functools.wraps(function)
    async def each(*, prompts: Sequence[Any], completions: Sequence[str], **given: Any) -> list[Any]:
        own = given if takes_all else {p.name: given[p.name] for p in named if p.name in given}
        results = []
        for number, completion in enumerate(completions):
            row = {name: values[number] for name, values in own.items()} | {"completion": completion}
            if "prompt" in parameters:
                row["prompt"] = prompts[number]
            results.append(function(**row))
        return [await result if inspect.isawaitable(result) else result for result in results]

    return _signed(each, named)


def _of_verl(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def each(*, completions: Sequence[str], **given: Any) -> list[Any]:
        return [_verl_verdict(function, completion, given, number) for number, completion in enumerate(completions)]

    return _signed(each, [])


def _verl_verdict(function: Callable[..., Any], completion: str, given: dict[str, Any], number: int) -> Any:
    row = {name: values[number] for name, values in given.items()}
    truth = row["ground_truth"] if "ground_truth" in row else (row.get("reward_model") or {})["ground_truth"]
    result = function(
        data_source=row.get("data_source"),
        solution_str=completion,
        ground_truth=truth,
        extra_info=row.get("extra_info"),
    )
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    if not isinstance(result, dict):
        return result
    numbers = {name: value for name, value in result.items() if hasattr(value, "__float__") or value is None}
    return {"total": numbers.pop("score"), **numbers}


def _signed(each: Callable[..., Any], columns: Sequence[inspect.Parameter]) -> Callable[..., Any]:
    """The function with a signature that names the columns that it needs."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, keyword) for name in ("prompts", "completions")]
    parameters += [p.replace(kind=keyword) for p in columns if p.name not in RESERVED]
    parameters.append(inspect.Parameter("_", inspect.Parameter.VAR_KEYWORD))
    each.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return each


async def _awaited(result: Any) -> Any:
    return await result
