"""What a row of data says about how code is to be judged."""

from __future__ import annotations

import ast
import builtins
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.errors import InputError
from grpo.sandbox import Unit

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Programs:
    """The code is a program: for each input, what it must print."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Calls:
    """The code defines functions: pieces of test code, and the names that they take from it."""

    names: tuple[str, ...]
    units: tuple[Unit, ...]


def parse_tests(value: Any, entry_point: str | None = None, setup: str | None = None) -> Programs | Calls:
    """The tests of one row.

    `value` is one of
    - text of Python code with asserts, or a list of such texts (MBPP);
    - text that defines `check(candidate)`, with the name of the function to check in `entry_point` (HumanEval);
    - a list of `{"stdin": ..., "stdout": ...}`;
    - a list of `{"function": ..., "args": [...], "expected": ...}`; `function` may be left out for `entry_point`;
    - JSON text of such a list.

    `setup` is code that runs before the tests. What setup and tests define themselves is theirs, whatever the
    completion calls by the same name. A top-level statement that holds an assert is one test, and so is every
    function `test...` without parameters.

    Raises InputError for anything else, and for tests that assert nothing.
    """
    items = _listed(value)
    if not items:
        raise InputError("tests is empty")
    kinds = {_kind(item) for item in items}
    if kinds == {"stdin"}:
        return Programs(tuple((_text(item, "stdin"), _text(item, "stdout")) for item in items))
    if "stdin" in kinds:
        raise InputError("tests mix stdin with calls of functions")
    units = [Unit(ast.unparse(node), False) for node in _parsed(setup or "").body]
    for item in items:
        units += _asserts(item, entry_point) if isinstance(item, str) else [_case(item, entry_point)]
    return Calls(tuple(_free_names(units)), tuple(units))


def _listed(value: Any) -> Sequence[Any]:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return [value]
    if isinstance(value, str):
        return [value]
    if isinstance(value, Sequence):
        return value
    raise InputError(f"tests is {_shown(value)}; it must be text or a list")


def _kind(item: Any) -> str:
    if isinstance(item, str):
        return "code"
    if isinstance(item, Mapping):
        # Tables fill the keys that a row does not have with None.
        if item.get("stdin") is not None:
            return "stdin"
        if "expected" in item:
            return "expected"
    raise InputError(
        f"a test is {_shown(item)}; it must be code, or have stdin and stdout, or function, args and expected"
    )


def _text(item: Mapping[str, Any], name: str) -> str:
    if not isinstance(item.get(name), str):
        raise InputError(f"{name} of a test is {_shown(item.get(name))}; it must be text")
    return item[name]


def _case(item: Mapping[str, Any], entry_point: str | None) -> Unit:
    name = item.get("function") or entry_point
    if not isinstance(name, str) or not name.isidentifier():
        raise InputError(f"function of a test is {_shown(name)}; it must be the name of a function")
    arguments = item.get("args")
    if not isinstance(arguments, Sequence) or isinstance(arguments, str):
        raise InputError(f"args of a test is {_shown(arguments)}; it must be a list")
    given, expected = json.dumps(list(arguments)), json.dumps(item["expected"])
    return Unit(f"assert _same({name}(*_json({given!r})), _json({expected!r}))", True)


def _asserts(source: str, entry_point: str | None) -> list[Unit]:
    body = _checked(_parsed(source).body, entry_point)
    units = [Unit(ast.unparse(node), _holds_assert(node)) for node in body]
    units += [
        Unit(f"{node.name}()", True)
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test") and not ast.unparse(node.args)
    ]
    if any(unit.counted for unit in units):
        return units
    # Asserts inside of a function that the text itself calls.
    calls = any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in body)
    if calls and any(isinstance(node, ast.Assert) for statement in body for node in ast.walk(statement)):
        return [Unit(source, True)]
    if any(_is_check(node) for node in body):
        raise InputError("tests define check(candidate), and there is no entry_point that says what to check")
    raise InputError(f"a test asserts nothing: {_shown(source)}")


def _checked(body: list[ast.stmt], entry_point: str | None) -> list[ast.stmt]:
    """`body` with `check(entry_point)` called in place of its definition, its statements written out."""
    checks = [node for node in body if _is_check(node)]
    if entry_point is None or len(checks) != 1:
        return body
    if not entry_point.isidentifier():
        raise InputError(f"entry_point is {_shown(entry_point)}; it must be the name of a function")
    (check,) = checks
    assert isinstance(check, ast.FunctionDef)
    parameter = check.args.args[0].arg
    rest = [node for node in body if node is not check]
    if any(isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom, ast.Nonlocal)) for node in _inside(check.body)):
        return [*rest, check, *_parsed(f"assert check({entry_point}) is not check").body]
    return [*rest, *_parsed(f"{parameter} = {entry_point}").body, *check.body]


def _is_check(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1


def _holds_assert(statement: ast.stmt) -> bool:
    """Whether an assert runs with a statement; one of a constant (`assert True`) says nothing."""
    return any(
        isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant) for node in _inside([statement])
    )


def _inside(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """All nodes that run with `body`, without those of functions and classes that it defines."""
    for node in body:
        if not isinstance(node, DEFINITIONS):
            yield node
            yield from _inside(list(ast.iter_child_nodes(node)))


def _free_names(units: Sequence[Unit]) -> list[str]:
    """The names that the units use and neither define nor find among Python's own."""
    used: dict[str, None] = {}
    defined = {"_same", "_json", "__name__", *dir(builtins)}
    for node in (node for unit in units for node in ast.walk(ast.parse(unit.source))):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                used[node.id] = None
            else:
                defined.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return [name for name in used if name not in defined]


def _parsed(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"a test is not Python ({error.args[0]}): {_shown(source)}") from error


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
