"""What Triton's compilers make of the kernels, as JSON lines: ``TRITON_INTERPRET=0 python -m benchmarks.compiled``.

Needs no GPU. A process of its own, because TRITON_INTERPRET is read when kernels are defined. The compiling itself is
that of the tests.
"""

from __future__ import annotations

import json

from grpo_kernels.kernels import kernels
from grpo_kernels.kernels.launch import launch_settings
from grpo_kernels.kernels.tiled import tile_settings
from tests.grpo_kernels import compile_kernels

ROW_KERNELS = {
    "statistics": (kernels.token_stats_kernel, {"HAS_SOFTCAP": False, "HAS_TEMPERATURES": False}),
    "loss": (kernels.grpo_kernel, compile_kernels.grpo_constants(WRITE_GRAD=False)),
    "loss and gradient": (kernels.grpo_kernel, compile_kernels.grpo_constants()),
    "gradient": (
        kernels.row_grad_kernel,
        {"HAS_ENTROPY": True, "HAS_SOFTCAP": False, "HAS_TEMPERATURES": False},
    ),
    "scale": (kernels.scale_rows_kernel, {}),
}
DTYPE, VOCABULARY = "bf16", compile_kernels.VOCABULARY


def main() -> None:
    for target in compile_kernels.TARGETS:
        for name, (kernel, constants) in ROW_KERNELS.items():
            found = compile_kernels.describe_rows(kernel, constants, DTYPE, VOCABULARY, target)
            _, num_warps = launch_settings(VOCABULARY, target.warp_size)
            load = max(found["row_load_bytes"])
            print(json.dumps(_row(name, found, num_warps, load)), flush=True)
        constants = {"D": compile_kernels.WIDTH, "HAS_BIAS": False, "HAS_SOFTCAP": False}
        found = compile_kernels.describe_tiles(constants, DTYPE, target)
        num_warps = tile_settings(2, target.warp_size).num_warps
        print(json.dumps(_row("tiled log-probabilities", found, num_warps, found["widest_load"])), flush=True)


def _row(name: str, found: dict, num_warps: int, load: int) -> dict:
    kept = {key: found[key] for key in ("target", "registers", "spilled_bytes", "shared")}
    return {"kernel": name, **kept, "num_warps": num_warps, "load_bytes": load}


if __name__ == "__main__":
    main()
