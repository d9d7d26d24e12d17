"""``python -m benchmarks kernels``: what can be known of the kernels without a GPU.

Registers, spills, shared memory and access widths are the compilers'; bytes are counted in Triton's interpreter;
occupancy and roofline times are computed from them and from the vendors' data sheets. Nothing here is a measured time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .report import print_table, write_json

ROWS, VOCABULARY, WIDTH, ELEMENT_BYTES = 8192, 151936, 2048, 2  # of the roofline times: bfloat16
TILED = "tiled log-probabilities"


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor (CUDA C programming guide, technical specifications by compute capability)."""

    warps: int
    programs: int
    shared_bytes: int


MULTIPROCESSORS = {
    "80": Multiprocessor(64, 32, 164 * 1024),
    "86": Multiprocessor(48, 16, 100 * 1024),
    "89": Multiprocessor(48, 24, 100 * 1024),
    "90": Multiprocessor(64, 32, 228 * 1024),
    "100": Multiprocessor(64, 32, 228 * 1024),
    "120": Multiprocessor(48, 32, 100 * 1024),
}
REGISTERS = 65536  # of a multiprocessor
RESERVED_SHARED_BYTES = 1024  # of each program
# CDNA 3 (instruction set guide): 4 SIMD units a compute unit, 512 vector registers a lane, 8 wavefronts a unit.
AMD_UNITS, AMD_REGISTERS, AMD_WAVES, AMD_SHARED_BYTES = 4, 512, 8, 64 * 1024


@dataclass(frozen=True)
class Card:
    """From the vendor's data sheet: memory bandwidth, and dense bfloat16 products with float32 sums."""

    name: str
    target: str
    bytes_per_second: float
    flops: float


CARDS = (
    Card("A100 SXM 80GB", "80", 2039e9, 312e12),
    Card("RTX 3090", "86", 936e9, 71e12),
    Card("RTX 4090", "89", 1008e9, 165.2e12),
    Card("H100 SXM", "90", 3350e9, 989e12),
    Card("B200", "100", 8000e9, 2250e12),
    Card("RTX 5090", "120", 1792e9, 209.5e12),
    Card("MI300X", "gfx942", 5300e9, 1307e12),
)


def occupancy(target: str, registers: int, shared: int, num_warps: int) -> float:
    """The share of the warps that a multiprocessor can hold, if as many programs as fit are on it."""
    if target.startswith("gfx"):
        waves = min(AMD_WAVES, AMD_REGISTERS // _rounded(max(registers, 1), 8)) * AMD_UNITS
        programs = min(waves // num_warps, AMD_SHARED_BYTES // max(shared, 1))
        return programs * num_warps / (AMD_WAVES * AMD_UNITS)
    limits = MULTIPROCESSORS[target]
    registers_per_warp = _rounded(registers * 32, 256)
    programs = min(
        REGISTERS // registers_per_warp // num_warps,
        limits.warps // num_warps,
        limits.programs,
        limits.shared_bytes // (shared + RESERVED_SHARED_BYTES),
    )
    return programs * num_warps / limits.warps


def _rounded(value: int, granularity: int) -> int:
    return -(-value // granularity) * granularity


def roofline_seconds(kernel: str, card: Card, passes: dict[str, float] | None) -> float:
    """The least time for 8,192 rows of 151,936 bfloat16 logits; of the tiled kernel, of hidden states 2,048 wide.

    A row that is swept twice by one program is read from memory once: it is counted in the cache the second time.
    """
    if kernel == TILED:
        flops = 2 * ROWS * VOCABULARY * WIDTH
        size = (ROWS + VOCABULARY) * WIDTH * ELEMENT_BYTES
        return max(flops / card.flops, size / card.bytes_per_second)
    assert passes is not None
    sweeps = min(passes["loaded"], 1.0) + passes["stored"]
    return sweeps * ROWS * VOCABULARY * ELEMENT_BYTES / card.bytes_per_second


def run_kernels(folder: Path) -> int:
    compiled = [json.loads(line) for line in _output_of("benchmarks.compiled", "0").splitlines()]
    passes = json.loads(_output_of("benchmarks.counted", "1"))
    for row in compiled:
        row["occupancy"] = occupancy(row["target"], row["registers"], row["shared"], row["num_warps"])
    print_table(
        "as compiled: bfloat16, vocabulary 151,936",
        ("kernel", "target", "registers", "spilled", "shared memory", "load", "warps", "occupancy (computed)"),
        [
            (
                row["kernel"], row["target"], str(row["registers"]), f"{row['spilled_bytes']} B",
                f"{row['shared']:,} B", f"{row['load_bytes']} B", str(row["num_warps"]), f"{row['occupancy']:.0%}",
            )
            for row in compiled
        ],
    )  # fmt: skip
    print_table(
        "logits that a row loads and stores, in multiples of the row (counted in the interpreter)",
        ("kernel", "loaded", "stored"),
        [(name, f"{found['loaded']:.3f}", f"{found['stored']:.3f}") for name, found in passes.items()],
    )
    times: list[dict[str, Any]] = [
        {"kernel": name, "card": card.name, "seconds": roofline_seconds(name, card, passes.get(name))}
        for name in (*passes, TILED)
        for card in CARDS
    ]
    print_table(
        "computed, not measured: the least time by the roofline, in ms, for 8,192 rows",
        ("kernel", *(card.name for card in CARDS)),
        [
            (name, *(f"{1000 * row['seconds']:.2f}" for row in times if row["kernel"] == name))
            for name in (*passes, TILED)
        ],
    )
    write_json(folder / "kernels.json", {"compiled": compiled, "passes": passes, "computed_roofline": times})
    return 1 if any(row["spilled_bytes"] for row in compiled) else 0


def _output_of(module: str, interpret: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    command = [sys.executable, "-m", module]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(f"{module} failed: {result.stderr.strip().splitlines()[-1]}")
    return result.stdout
