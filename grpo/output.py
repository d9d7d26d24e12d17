"""What a run leaves behind: the PEFT adapter, its configuration, its metrics and its samples."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.config import TrainConfig
from grpo.errors import InputError
from grpo.policy import Policy


def check_output_dir(path: Path, overwrite: bool) -> None:
    """Raise InputError where a run could not be written to `path`, or would mix with what is there."""
    if path.exists() and not path.is_dir():
        raise InputError(f"--output-dir {path} is a file: choose another folder")
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise InputError(f"--output-dir {path} is not empty: choose another, or add --overwrite-output-dir")
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--output-dir {path}: {existing} cannot be written to: choose another folder")


def write_run(
    path: Path,
    policy: Policy,
    config: TrainConfig,
    metrics: Sequence[dict[str, Any]],
    samples: Sequence[dict[str, Any]],
) -> None:
    """Write everything beside `path` first, then move it there, so that no file is ever seen half-written."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        # The adapters touch no embeddings; asking PEFT to find that out could mean a request to the Hub.
        policy.model.save_pretrained(str(staging), save_embedding_layers=False)
        (staging / "README.md").unlink(missing_ok=True)  # PEFT's form of a model card, not filled in
        (staging / "train_config.json").write_text(json.dumps(config.to_dict(), indent=2) + "\n", encoding="utf-8")
        _write_jsonl(staging / "metrics.jsonl", metrics)
        _write_jsonl(staging / "samples.jsonl", samples)
        path.mkdir(exist_ok=True)
        for file in sorted(staging.iterdir()):
            os.replace(file, path / file.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_jsonl(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
