"""Every kernel compiles for every supported GPU, without one: no spills, little shared memory, wide accesses."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from .helpers import needs_triton

pytestmark = needs_triton
REPOSITORY = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What ``compile_kernels.py`` printed, a dictionary per kernel, variant and target."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    command = [sys.executable, "-m", "tests.grpo_kernels.compile_kernels"]
    result = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def name(row):
    return f"{row['kernel']} {row['dtype']} {row['vocabulary']} {row['target']} {row['constants']}"


def test_all_kernels_and_targets_are_there(compiled):
    targets = {"80", "86", "89", "90", "100", "120", "gfx942"}
    kernels = {"grpo_kernel", "token_stats_kernel", "row_grad_kernel", "scale_rows_kernel", "linear_stats_kernel"}
    assert {(row["kernel"], row["target"]) for row in compiled} == {(k, t) for k in kernels for t in targets}


def test_nothing_spills(compiled):
    assert [name(row) for row in compiled if row["spilled_bytes"]] == []


def test_shared_memory_fits_consumer_cards(compiled):
    limits = {"gfx942": 64 * 1024}
    assert [name(row) for row in compiled if row["shared"] > limits.get(row["target"], 99 * 1024)] == []


def aligned(rows):
    """Those of logits whose rows all begin at a multiple of 16 bytes."""
    return [
        row
        for row in rows
        if row["constants"].get("ALIGNED") and row["constants"].get("UNIT_STRIDE", True) and row["vocabulary"] > 4096
    ]


def test_registers_leave_room_for_two_programs_per_multiprocessor(compiled):
    """16 warps of 32 threads twice in 65,536 registers; with a soft cap programs are smaller."""
    rows = [row for row in aligned(compiled) if row["target"] != "gfx942"]
    rows = [row for row in rows if not row["constants"].get("HAS_SOFTCAP")]
    assert [(name(row), row["registers"]) for row in rows if row["registers"] > 64] == []


def test_aligned_rows_are_read_16_bytes_at_a_time(compiled):
    assert [(name(row), row["row_load_bytes"]) for row in aligned(compiled) if row["row_load_bytes"] != [16]] == []


def test_aligned_rows_are_written_16_bytes_at_a_time(compiled):
    """Beside the 4 bytes of each number that the row yields."""
    for row in aligned(compiled):
        writes = row["kernel"] in ("row_grad_kernel", "scale_rows_kernel") or row["constants"].get("WRITE_GRAD", False)
        assert set(row["store_bytes"]) - {4} == ({16} if writes else set()), name(row)


def test_unaligned_rows_are_recognised(compiled):
    """The check can fail: 50,257 columns of 2 bytes are not a multiple of 16."""
    assert any(row["row_load_bytes"] != [16] for row in compiled if row["vocabulary"] == 50257)


def tiled(rows, dtypes):
    return [row for row in rows if row["kernel"] == "linear_stats_kernel" and row["dtype"] in dtypes]


def test_half_precision_products_use_the_matrix_units(compiled):
    assert [name(row) for row in tiled(compiled, ("bf16", "fp16")) if not row["uses_matrix_units"]] == []


def test_float32_products_are_not_rounded_to_fewer_bits_by_them(compiled):
    """NVIDIA's would round to TF32; AMD's multiply float32 as it is."""
    rows = [row for row in tiled(compiled, ("fp32",)) if row["target"] != "gfx942"]
    assert [name(row) for row in rows if row["uses_matrix_units"]] == []


def test_tiles_are_read_16_bytes_at_a_time(compiled):
    """Where rows begin at multiples of 16 bytes; the odd width shows that the check can fail."""
    for row in tiled(compiled, ("bf16", "fp16", "fp32")):
        assert (row["widest_load"] == 16) == (row["constants"]["D"] % 16 == 0), name(row)
