"""Checkpoints: folders `checkpoint-N` of a run that are complete or not there at all.

A checkpoint is written beside its place, flushed to the disk, and renamed. What a kill leaves half-written has a name
that begins with a dot, and is removed by the next run that goes on.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import distribute_tensor

from grpo import processes
from grpo.errors import InputError
from grpo.policy import REFERENCE, Policy

NAME = re.compile(r"checkpoint-(\d+)")
STATE, TRAINING = "state.json", "training.pt"


def save_checkpoint(run: Path, step: int, write: Callable[[Path], None], limit: int) -> Path:
    """`write` a checkpoint in every process, make it appear, and remove all but the newest `limit`."""
    path, staged = run / f"checkpoint-{step}", run / f".checkpoint-{step}.new"
    if processes.rank() == 0:
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
    processes.wait()
    write(staged)
    processes.wait()
    if processes.rank() == 0:
        flush(staged)
        if path.exists():
            remove(path)
        os.replace(staged, path)
        _flush_folder(run)
        for old in checkpoints(run)[:-limit]:
            remove(old)
    processes.wait()
    return path


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    found = [(int(match[1]), path) for path in run.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that `path` is, or the newest of the run that it is; raises InputError where there is none."""
    if (path / STATE).is_file():
        return path
    found = checkpoints(path) if path.is_dir() else []
    if not found:
        raise InputError(f"--resume {path}: there is no checkpoint; give a run's folder, or one of its checkpoint-N")
    return found[-1]


def clean(run: Path) -> None:
    """Remove what a killed run left half-written or half-removed."""
    for path in run.glob(".checkpoint-*"):
        shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """A folder that is partly removed never looks like a checkpoint."""
    doomed = path.with_name(f".{path.name}.old")
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def flush(folder: Path) -> None:
    """Hand every file to the disk."""
    for path in [p for p in folder.rglob("*") if p.is_file()]:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Plain values, by the first process."""
    if processes.rank() == 0:
        (folder / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")


def read_state(folder: Path) -> dict[str, Any]:
    """Raises InputError where it is missing or no JSON."""
    try:
        return json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"--resume {folder}: {STATE} cannot be read: {error}") from error


def write_training(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """What is trained, the optimizer's state, and the adapter that is the reference, whole whatever the sharding."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    state = {
        "model": whole_parameters(policy, trained=True),
        "optimizer": get_optimizer_state_dict(policy.model, optimizer, options=options),
        "reference": whole_parameters(policy, trained=False),
    }
    if processes.rank() == 0:
        torch.save(state, folder / TRAINING)


def read_training(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    state = torch.load(folder / TRAINING, map_location="cpu", weights_only=True)
    options = StateDictOptions(full_state_dict=True, ignore_frozen_params=True)
    set_optimizer_state_dict(policy.model, optimizer, state["optimizer"], options=options)
    if state["reference"] and not whole_parameters(policy, trained=False):
        policy.sync_reference(0.0)
    parameters = dict(policy.model.named_parameters())
    for name, whole in (state["model"] | state["reference"]).items():
        parameters[name].data.copy_(placed_like(whole, parameters[name]))


def whole_parameters(policy: Policy, trained: bool) -> dict[str, torch.Tensor]:
    """The adapter that is trained, or the frozen one that is the reference, on the CPU. Every process calls it."""
    chosen = {
        name: parameter.detach()
        for name, parameter in policy.model.named_parameters()
        if (parameter.requires_grad if trained else f".{REFERENCE}" in name)
    }
    return {name: (p.full_tensor() if hasattr(p, "full_tensor") else p).cpu() for name, p in chosen.items()}


def placed_like(whole: torch.Tensor, parameter: Any) -> torch.Tensor:
    """The tensor on the parameter's device, spread over the processes as it is."""
    whole = whole.to(parameter.device)
    if not hasattr(parameter, "full_tensor"):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements)


def write_process(folder: Path, state: Mapping[str, Any]) -> None:
    """What each process has of its own: its random numbers, and `state` of numbers, lists and tensors."""
    kind, keys, *place = np.random.get_state()
    python = random.getstate()
    rng = {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [python[0], list(python[1]), python[2]],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), *place],
    }
    torch.save({"rng": rng, **state}, folder / f"process-{processes.rank()}.pt")


def read_process(folder: Path) -> dict[str, Any]:
    """Set this process's random numbers; returns the rest."""
    state = torch.load(folder / f"process-{processes.rank()}.pt", map_location="cpu", weights_only=True)
    rng = state.pop("rng")
    torch.set_rng_state(rng["torch"])
    if rng["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(rng["cuda"])
    version, numbers, gauss = rng["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, *place = rng["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *place))
    return state
