"""What the benchmarks say of the kernels without a GPU is computed as the vendors define it."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks import kernels


def test_occupancy_is_the_data_sheets():
    assert kernels.occupancy("80", registers=64, shared=64, num_warps=16) == 0.5  # 1024 threads of 64 registers
    assert kernels.occupancy("80", registers=32, shared=64, num_warps=16) == 1.0
    assert kernels.occupancy("89", registers=64, shared=64, num_warps=16) == pytest.approx(32 / 48)
    assert kernels.occupancy("89", registers=32, shared=90 * 1024, num_warps=8) == pytest.approx(8 / 48)
    assert kernels.occupancy("gfx942", registers=64, shared=32, num_warps=8) == 1.0
    assert kernels.occupancy("gfx942", registers=256, shared=32, num_warps=4) == 0.25


def test_a_roofline_time_is_bytes_by_bandwidth_or_flops_by_rate():
    card = kernels.Card("a card", "80", bytes_per_second=1e12, flops=1e14)
    size = 8192 * 151936 * 2
    assert kernels.roofline_seconds("loss", card, {"loaded": 1.0, "stored": 0.0}) == pytest.approx(size / 1e12)
    twice = kernels.roofline_seconds("loss and gradient", card, {"loaded": 2.0, "stored": 1.0})
    assert twice == pytest.approx(2 * size / 1e12)
    assert kernels.roofline_seconds(kernels.TILED, card, None) == pytest.approx(2 * 8192 * 151936 * 2048 / 1e14)


def test_bytes_are_counted_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "benchmarks.counted"]
    found = json.loads(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)
    passes = {name: (round(row["loaded"], 2), round(row["stored"], 2)) for name, row in found.items()}
    assert passes == {
        "statistics": (1, 0),
        "loss": (1, 0),
        "gradient": (1, 1),
        "scale": (1, 1),
        "loss and gradient": (2, 1),
    }
