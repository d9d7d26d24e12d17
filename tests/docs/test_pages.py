"""What the pages tell people to type works: commands parse, snippets run, links lead somewhere."""

import json
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import benchmarks.__main__
from grpo.cli import build_parser
from grpo.config import TrainConfig
from grpo.options import typed_options
from grpo.rewards import find_rewards

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
FENCE = re.compile(r"^(<!-- fragment -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    page: Path
    language: str
    text: str
    is_fragment: bool


def prose(page: Path) -> str:
    """Without the blocks."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


BLOCKS = [
    Block(page, language, text, bool(mark))
    for page in PAGES if page.name != "api.md"
    for mark, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
]  # fmt: skip


def of(language: str, blocks=BLOCKS):
    found = [block for block in blocks if block.language == language]
    return pytest.mark.parametrize("block", found, ids=lambda block: f"{block.page.name}: {block.text[:30]!r}")


def commands() -> list[str]:
    """Of blocks without a language, and in the text: those with more than the name of a command."""
    lines = [line for block in BLOCKS if not block.language for line in block.text.splitlines()]
    lines += [code for page in DOCS for code in re.findall(r"`([^`\n]+)`", prose(page)) if len(code.split()) > 2]
    return sorted({line for line in lines if re.match(r"(grpo [a-z]|python -m benchmarks)", line)})


@pytest.mark.parametrize("command", commands())
def test_a_command_is_understood(command):
    name, *words = shlex.split(command, comments=True)
    if name == "grpo":
        parser = build_parser()
    else:
        parser, words = benchmarks.__main__.build_parser(), words[2:]
    try:
        parser.parse_args(words)
    except SystemExit as done:
        assert done.code == 0 and "--help" in words, command


@of("yaml", [block for block in BLOCKS if not block.is_fragment])
def test_a_configuration_is_valid(block):
    TrainConfig(**typed_options(yaml.safe_load(block.text), TrainConfig, block.page.name))


@of("yaml", [block for block in BLOCKS if block.is_fragment])
def test_the_parts_of_a_reward_are_valid(block, tmp_path):
    (tmp_path / "rewards.yaml").write_text(block.text)
    (reward,) = find_rewards([f"composite:{tmp_path}/rewards.yaml"])
    assert reward.columns == ["answer"]


@of("json")
def test_a_row_of_data_is_json(block):
    for line in block.text.splitlines():
        assert isinstance(json.loads(line), dict)


@of("python")
def test_python_compiles(block):
    compile(block.text, str(block.page), "exec")


@of("python", [block for block in BLOCKS if block.page in DOCS and not block.is_fragment])
def test_python_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block.text, str(block.page), "exec"), {"__name__": "snippet"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = prose(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    used, defined = re.findall(r"\]\[([\w-]+)\]", text), re.findall(r"^\[([\w-]+)\]: (\S+)$", text, re.MULTILINE)
    broken = [name for name in used if name not in dict(defined)]
    targets += [target for _, target in defined]
    for target in targets:
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_of_a_table_have_as_many_cells_as_its_head(page):
    for table in re.findall(r"(?:^\|.*\n)+", prose(page), re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(counts) == 1, table.splitlines()[0]


def test_the_index_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS if page.name != "README.md" and f"({page.name})" not in index] == []
