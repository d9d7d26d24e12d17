"""``python -m benchmarks``: see ``benchmarks/README.md``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed and memory, against others.")
    parser.add_argument(
        "suite",
        nargs="?",
        default="quick",
        choices=("quick", "sweep", "gpu", "kernels", "memory", "trainer", "rewards", "check"),
        help="quick (default): within 3 minutes on two cores; sweep: a grid of sizes; gpu: within 8 minutes on a GPU; "
        "kernels: what compilers make of ours, without a GPU; memory: simulated peaks of training steps; trainer: "
        "ours and TRL's on the CPU; rewards: completions judged a second; check: against the committed baseline",
    )
    parser.add_argument("--quick", dest="shortcut", action="store_const", const="quick", help="as: quick")
    parser.add_argument("--gpu", dest="shortcut", action="store_const", const="gpu", help="as: gpu")
    parser.add_argument("--device", help="default: cuda for gpu, else cpu")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), help="default: runs/benchmarks")
    parser.add_argument("--update", action="store_true", help="check: write the baseline instead")
    return parser


def main(argv: list[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    suite = arguments.shortcut or arguments.suite
    device = arguments.device or ("cuda" if suite == "gpu" else "cpu")
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            print("device is cuda, but torch finds no GPU here; allowed here: cpu", file=sys.stderr)
            return 2
    return run(suite, device, arguments.output_dir, arguments.update)


def run(suite: str, device: str, folder: Path, update: bool) -> int:
    if suite == "gpu":
        from .gpu import run_gpu

        return run_gpu(device, folder)
    if suite == "kernels":
        from .kernels import run_kernels

        return run_kernels(folder)
    if suite == "memory":
        from .memory import main as run_memory

        return run_memory(["--output-dir", str(folder)])
    if suite == "trainer":
        from .trainer import run_trainer

        return run_trainer(folder)
    if suite == "rewards":
        from .rewards import run_rewards

        return run_rewards(folder)
    if suite == "check":
        from .check import run_check

        return run_check(device, update)
    from .losses import run_quick, run_sweep

    return run_quick(device, folder) if suite == "quick" else run_sweep(device, folder)


if __name__ == "__main__":
    sys.exit(main())
