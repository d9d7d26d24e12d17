"""The tests and files that the documentation names are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"`((?:tests|benchmarks|examples|grpo|grpo_kernels)/[\w./]+\.\w+)(?:::(\w+))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_that_a_page_names_exist(page):
    missing = []
    for path, function in NAMED.findall(page.read_text(encoding="utf-8")):
        file = ROOT / path
        if not file.is_file() or (function and function not in functions(file)):
            missing.append(f"{path}::{function}")
    assert missing == []


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}
