"""docs/api.md is what the docstrings say, and they say what a caller needs to know."""

import importlib.util
import inspect
from pathlib import Path

import pytest

import grpo
import grpo_kernels
from grpo.advantages import AdvantageConfig

DOCS = Path(__file__).parents[2] / "docs"
pytest.importorskip("trl")


@pytest.fixture(scope="module")
def make_api():
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(make_api):
    assert make_api.page() == (DOCS / "api.md").read_text(encoding="utf-8"), "run: python docs/make_api.py"


PUBLIC = [(module, name) for module in (grpo_kernels, grpo) for name in module.__all__]
FUNCTIONS = [getattr(module, name) for module, name in PUBLIC if inspect.isfunction(getattr(module, name))]


@pytest.mark.parametrize("module, name", PUBLIC, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_every_public_name_is_documented(module, name):
    assert getattr(module, name).__doc__, name


# Where a docstring says "as for" another name, that one explains the rest.
AS_FOR = {
    "linear_grpo_loss": (grpo_kernels.grpo_loss,),
    "linear_token_logps": (grpo_kernels.linear_grpo_loss, grpo_kernels.grpo_loss, grpo_kernels.token_logps),
    "group_advantages": (AdvantageConfig,),
    "train": (grpo.build,),
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_every_parameter_is_explained(function):
    others = AS_FOR.get(function.__name__, ())
    texts = " ".join(inspect.getdoc(value) for value in (function, *others))
    # A display says where lines go, in the trainer's docstring.
    names = set(inspect.signature(function).parameters) - {"display"}
    assert {name for name in names if name not in texts} == set()


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_what_is_refused_is_said(function):
    """Of functions that check what they are given."""
    checks = {"logits", "hidden", "model", "quantile", "groups", "config"} & set(inspect.signature(function).parameters)
    assert not checks or "raises" in inspect.getdoc(function).lower()
