"""Groups of processes on this machine, which run cases and say how each ended."""

import datetime
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

# A process that waits for one that has failed gives up after this.
TIMEOUT = datetime.timedelta(seconds=60)


def outcomes(world: int, cases: dict[str, Callable[[], None]]) -> dict[str, str]:
    """Run the cases, one after the other, in a gloo group; returns the tracebacks of those that failed, by name."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(_work, (world, folder, cases), nprocs=world, start_method="spawn")
        failures: dict[str, str] = {}
        for rank in range(world):
            failed = torch.load(Path(folder, f"{rank}.pt"))
            failures |= {name: f"rank {rank} of {world}\n{text}" for name, text in failed.items()}
    return failures


def _work(rank: int, world: int, folder: str, cases: dict[str, Callable[[], None]]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder, "store")), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    failures = {}
    for name, case in cases.items():
        try:
            case()
        except Exception:
            failures[name] = traceback.format_exc()
        dist.barrier()
    torch.save(failures, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()
