"""What a process of the gym reward does with an item: a task's own scoring, without the evaluation of answers as code.

Some tasks of reasoning-gym evaluate answers as Python, by `eval` or by sympy's `parse_expr`, which is `eval` with all
built-in functions. Here the first reads literals alone, and the second arithmetic on numbers and symbols.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Mapping
from typing import Any

NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Load, ast.Call,
    ast.Tuple, ast.keyword,
)  # fmt: skip
FUNCTIONS = ("sqrt", "cbrt", "root")


def score(task: str, answer: str, entry: str) -> float:
    """The task's score of an answer to an entry: a literal of the task's options and of what it gave."""
    row = ast.literal_eval(entry)
    return float(_task(task, repr(row["options"])).score_answer(answer, row["entry"]))


@functools.cache
def _task(name: str, options: str) -> Any:
    import reasoning_gym

    importlib.import_module("sympy.parsing.sympy_parser").__dict__["eval_expr"] = arithmetic
    for module_name, module in list(sys.modules.items()):
        # Those of arithmetic evaluate what they made themselves.
        if module_name.startswith("reasoning_gym.") and not module_name.startswith("reasoning_gym.arithmetic"):
            module.__dict__["eval"] = ast.literal_eval
    return reasoning_gym.create_dataset(name, size=1, seed=0, **ast.literal_eval(options))


def arithmetic(code: str, local_dict: Mapping[str, Any], global_dict: Mapping[str, Any]) -> Any:
    """In place of sympy's `eval_expr`: raises ValueError for anything but operators, numbers, symbols and functions."""
    sympy = importlib.import_module("sympy")
    tree = ast.parse(code.strip(), mode="eval")
    for node in ast.walk(tree):
        allowed = isinstance(node, NODES)
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            called = local_dict.get(name, global_dict.get(name))
            is_class = isinstance(called, type) and issubclass(called, sympy.Basic)
            allowed = is_class or (name in FUNCTIONS and called is getattr(sympy, name))
        if not allowed:
            raise ValueError(f"an answer cannot hold {type(node).__name__}")
    return eval(compile(tree, "<answer>", "eval"), {"__builtins__": {}, **global_dict}, dict(local_dict))
