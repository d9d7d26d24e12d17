"""Rows from every place they may be in, and what is said of one that cannot be read."""

import importlib.util
import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from grpo.data.sources import read_rows
from grpo.errors import InputError

ROWS = [{"prompt": "1+1=", "answer": "2"}, {"prompt": "a,\n\u2028b", "answer": "007"}]
MESSAGES = [{"prompt": [{"role": "user", "content": "1+1"}], "answer": 2}]


def values(source) -> list:
    return [row for _, row in read_rows(str(source))]


def write(path, text: str):
    path.write_text(text, encoding="utf-8")
    return path


def test_every_form_of_file_gives_the_same_rows(tmp_path):
    lines = "\n".join(json.dumps(row) for row in ROWS)
    table = 'prompt,answer\n1+1=,2\n"a,\n\u2028b",007\n'
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "d.parquet")
    for source in (
        write(tmp_path / "d.jsonl", lines),
        write(tmp_path / "no_suffix", lines),
        write(tmp_path / "lines.json", lines),
        write(tmp_path / "list.json", json.dumps(ROWS, indent=2)),
        write(tmp_path / "d.csv", "\ufeff" + table),
        write(tmp_path / "d.tsv", table.replace("a,\n", "\0").replace(",", "\t").replace("\0", "a,\n")),
        tmp_path / "d.parquet",
    ):
        assert values(source) == ROWS, source


def test_rows_are_named_by_where_they_stand(tmp_path):
    path = write(tmp_path / "d.jsonl", '{"prompt": "a"}\n\n{"prompt": "b"}')
    assert [where for where, _ in read_rows(str(path))] == [f"{path} line 1", f"{path} line 3"]


def test_a_folder_that_datasets_saved_is_read_by_split(tmp_path):
    data = datasets.Dataset.from_list(MESSAGES)
    data.save_to_disk(tmp_path / "one")
    assert values(tmp_path / "one") == MESSAGES
    datasets.DatasetDict(train=data, test=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "two")
    assert values(f"{tmp_path / 'two'}@test") == ROWS
    with pytest.raises(InputError, match="two has the splits train, test: choose one, as in .*two@train"):
        values(tmp_path / "two")
    with pytest.raises(InputError, match="two has no split 'dev'; it has: train, test"):
        values(f"{tmp_path / 'two'}@dev")
    with pytest.raises(InputError, match="one has no splits; leave @train out"):
        values(f"{tmp_path / 'one'}@train")


@pytest.mark.parametrize(
    ("source", "asked"),
    [
        ("owner/sums", ("owner/sums", None, "train")),
        ("owner/sums@test", ("owner/sums", None, "test")),
        ("owner/sums:main@train[:5]", ("owner/sums", "main", "train[:5]")),
    ],
)
def test_a_hub_name_has_a_configuration_and_a_split(source, asked, monkeypatch):
    calls = []

    def load_dataset(name, config, split):
        calls.append((name, config, split))
        return datasets.Dataset.from_list(MESSAGES)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read_rows(source) == [(f"{source} row 1", MESSAGES[0])]
    assert calls == [asked]


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch):
    def load_dataset(name, config, split):
        raise ConnectionError("Couldn't reach 'owner/sums' on the Hub\nmore")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(InputError) as error:
        read_rows("owner/sums")
    assert str(error.value) == (
        "owner/sums is no file here, and the Hugging Face Hub does not give it: Couldn't reach 'owner/sums' on the Hub"
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.jsonl", "", "is empty"),
        ("d.json", "[]", "is empty"),
        ("d.csv", "prompt,answer\n", "is empty"),
        ("d.json", "[1]", "row 1 is not a JSON object"),
        ("d.json", "[", "is not valid JSON"),
        ("d.csv", "prompt,answer\na,1\nb\n", "line 3 has another number of fields than the 2 of the header"),
        ("d.csv", "prompt,answer\na,1,2\n", "line 2 has another number of fields"),
        ("d.csv", 'prompt,answer\n"a,1\n', "is not CSV"),
        ("d.parquet", "prompt", "is not a Parquet file"),
        ("d.xlsx", "prompt", "ends in '.xlsx': give a .jsonl"),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        read_rows(str(write(tmp_path / name, content)))


@pytest.mark.parametrize("source", ["nothing.jsonl", "./nothing", "data/nothing.csv", "/nothing"])
def test_a_missing_file_is_not_looked_for_on_the_hub(source):
    with pytest.raises(InputError, match=f"{source} does not exist"):
        read_rows(source)


@pytest.mark.parametrize("source", ["", "x" * 5000])
def test_a_source_must_have_a_name(source):
    with pytest.raises(InputError, match="names no data: give a .jsonl"):
        read_rows(source)


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(InputError, match="is a folder, and not one that datasets saved"):
        read_rows(str(tmp_path))


def test_a_task_of_reasoning_gym_is_a_source():
    (where, row), _ = read_rows("gym:chain_sum:size=2,seed=3")
    assert where == "gym:chain_sum:size=2,seed=3 row 1"
    assert list(row) == ["prompt", "answer", "gym_task", "gym_entry"]


def test_reasoning_gym_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"gym needs reasoning-gym: pip install 'grpo-kernels\[gym\]'"):
        read_rows("gym:chain_sum")
