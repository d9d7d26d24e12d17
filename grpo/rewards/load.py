"""Functions by name: FILE.py:function or package.module:function."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def load_function(target: str) -> Callable[..., Any]:
    """The function; raises what its module raises, FileNotFoundError, or AttributeError where it has none so named."""
    module, _, name = target.rpartition(":")
    function = getattr(load_module(module), name, None)
    if not callable(function):
        raise AttributeError(f"{module} has no function {name!r}")
    return function


def load_module(name: str) -> ModuleType:
    """A file is run anew; a module is imported once."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {name}")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    found = importlib.util.spec_from_file_location(f"grpo_reward_{digest}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module
