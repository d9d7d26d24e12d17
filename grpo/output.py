"""The folder of a run: its configuration, metrics, samples and, in the end, the PEFT adapter."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grpo import processes
from grpo.config import TrainConfig
from grpo.diagnose import Alarm
from grpo.errors import InputError
from grpo.journal import Journal, write_atomically
from grpo.policy import Policy
from grpo.trackers import Trackers

FILES = (
    "adapter_config.json", "adapter_model.safetensors", "alarms.jsonl", "environment.json", "metrics.jsonl",
    "report.html", "comparison.html", "samples.jsonl", "train_config.json",
)  # fmt: skip


def check_output_dir(path: Path, overwrite: bool) -> None:
    """Raise InputError where a run could not be written to `path`, or would mix with what is there."""
    if path.exists() and not path.is_dir():
        raise InputError(f"--output-dir {path} is a file: choose another folder")
    if path.is_dir() and any(path.iterdir()) and not overwrite:
        raise InputError(f"--output-dir {path} is not empty: choose another, or add --overwrite-output-dir")
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"--output-dir {path}: {existing} cannot be written to: choose another folder")


class RunFiles:
    """What the first process of a run writes; in the others, and without a folder, every method does nothing."""

    def __init__(self, path: Path | None, config: TrainConfig) -> None:
        self.path = path
        self.writes = path is not None and processes.rank() == 0
        if path is not None:
            self.metrics = Journal(path / "metrics.jsonl")
            self.samples = Journal(path / "samples.jsonl")
            self.alarms = Journal(path / "alarms.jsonl")
            self.trackers = Trackers(config, path)
        self.config = config

    def start(self) -> None:
        """Begin a new run, in place of an earlier one."""
        if self.writes and self.path is not None:
            self.path.mkdir(parents=True, exist_ok=True)
            remove_run(self.path)
            self._describe()

    def go_on(self, step: int) -> list[dict[str, Any]]:
        """Go on after `step`; returns the rows of metrics until then."""
        if not self.writes:
            return []
        self._describe()
        self.samples.cut(step)
        self.alarms.cut(step)
        return self.metrics.cut(step)

    def write(self, metrics: dict[str, Any], samples: Iterable[dict[str, Any]]) -> None:
        if self.writes:
            self.write_samples(samples)
            self.metrics.append([metrics])
            self.trackers.log(metrics)

    def write_samples(self, samples: Iterable[dict[str, Any]]) -> None:
        if self.writes:
            self.samples.append(samples)

    def raise_alarm(self, alarm: Alarm) -> None:
        if self.writes:
            self.alarms.append([dataclasses.asdict(alarm)])

    def finish(self, policy: Policy) -> None:
        """The adapter, whole or not at all."""
        if self.path is None:
            return
        staged = self.path / ".adapter.new"
        save_adapter(policy, staged)
        if self.writes:
            for file in sorted(staged.iterdir()):
                os.replace(file, self.path / file.name)
            staged.rmdir()

    def close(self) -> None:
        if self.writes:
            self.trackers.close()

    def _describe(self) -> None:
        assert self.path is not None
        write_atomically(self.path / "train_config.json", json.dumps(self.config.to_dict(), indent=2) + "\n")
        write_atomically(self.path / "environment.json", json.dumps(environment(), indent=2) + "\n")
        self.trackers.start()


def remove_run(path: Path) -> None:
    """Remove the files of an earlier run, and no others."""
    from grpo.checkpoint import checkpoints, clean, remove

    clean(path)
    for folder in checkpoints(path):
        remove(folder)
    shutil.rmtree(path / "grpo", ignore_errors=True)  # TensorBoard's
    for name in FILES:
        (path / name).unlink(missing_ok=True)


def save_adapter(policy: Policy, folder: Path, everywhere: bool = False) -> None:
    """The trained adapter in PEFT's form, written by the first process, or `everywhere` by each to a folder of its own.

    Every process has to call it where the model is sharded.
    """
    from peft import get_peft_model_state_dict

    from grpo.checkpoint import whole_parameters

    state = whole_parameters(policy, trained=True) if policy.is_sharded else None
    if everywhere or processes.rank() == 0:
        weights = {} if state is None else {"state_dict": get_peft_model_state_dict(policy.model, state)}
        # The adapters touch no embeddings; asking PEFT to find that out could mean a request to the Hub.
        policy.model.save_pretrained(str(folder), selected_adapters=["default"], save_embedding_layers=False, **weights)
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's form of a model card, not filled in


def environment() -> dict[str, Any]:
    """What the numbers of a run may depend on."""
    import accelerate
    import peft
    import torch
    import transformers

    libraries = (torch, transformers, peft, accelerate)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "python": platform.python_version(),
        **{library.__name__: library.__version__ for library in libraries},
        "device": device,
        "threads": torch.get_num_threads(),
        "processes": processes.count(),
        "command": sys.argv[1:],
    }
