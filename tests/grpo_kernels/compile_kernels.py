"""Compile every kernel for every target without a GPU, and print what came out as JSON lines.

Runs as a program of its own, because TRITON_INTERPRET is read when kernels are defined.
"""

import itertools
import json
import pathlib
import re
import subprocess
import tempfile

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from grpo_kernels.kernels import kernels
from grpo_kernels.kernels.launch import launch_settings
from grpo_kernels.kernels.tiled import linear_stats_kernel, tile_settings

TARGETS = [GPUTarget("cuda", capability, 32) for capability in (80, 86, 89, 90, 100, 120)]
TARGETS.append(GPUTarget("hip", "gfx942", 64))
VOCABULARY = 151936
WIDTH = 2048
ODD_WIDTH = 577
POINTER_TYPES = {"ids_ptr": "*i64", "active_ptr": "*i1"}
CUOBJDUMP = pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def grpo_constants(**changes):
    constants = {
        "OBJECTIVE": "clip",
        "KL": "k3",
        "BIAS_CORRECTED": True,
        "HAS_OLD": True,
        "HAS_TOKEN_WEIGHTS": True,
        "HAS_ENTROPY": True,
        "HAS_TEMPERATURES": False,
        "WRITE_GRAD": True,
        "HAS_SOFTCAP": False,
    }
    return constants | changes


def cases():
    """``(kernel, constants, dtype, vocabulary, target)``: everything on every target; every objective on one."""
    row_grad = (kernels.row_grad_kernel, {"HAS_ENTROPY": True, "HAS_SOFTCAP": False, "HAS_TEMPERATURES": True})
    everything = [
        (kernels.grpo_kernel, grpo_constants()),
        (kernels.grpo_kernel, grpo_constants(WRITE_GRAD=False)),
        (kernels.grpo_kernel, grpo_constants(HAS_TEMPERATURES=True)),
        (kernels.grpo_kernel, grpo_constants(HAS_SOFTCAP=True)),
        (kernels.token_stats_kernel, {"HAS_SOFTCAP": False, "HAS_TEMPERATURES": True}),
        row_grad,
        (kernels.scale_rows_kernel, {}),
    ]
    for (kernel, constants), dtype, target in itertools.product(everything, ("bf16", "fp32"), TARGETS):
        yield kernel, constants, dtype, VOCABULARY, target
    for kernel, constants in everything:
        yield kernel, constants, "fp16", VOCABULARY, TARGETS[2]
    # A chunk of float32 logits whose gradient is written for a half-precision head.
    for target in TARGETS:
        yield kernels.grpo_kernel, grpo_constants(), "fp32->bf16", VOCABULARY, target
        yield *row_grad, "fp32->bf16", VOCABULARY, target
    for objective, kl in itertools.product(("clip", "cispo", "sapo"), ("none", "k1", "k2", "k3")):
        constants = grpo_constants(OBJECTIVE=objective, KL=kl, HAS_TOKEN_WEIGHTS=False, HAS_ENTROPY=False)
        yield kernels.grpo_kernel, constants, "bf16", VOCABULARY, TARGETS[2]
    for constants in ({"HAS_OLD": False}, {"UNIT_STRIDE": False}):
        yield kernels.grpo_kernel, grpo_constants(**constants), "bf16", VOCABULARY, TARGETS[2]
    for vocabulary in (17, 1000, 32001, 50257):
        yield kernels.grpo_kernel, grpo_constants(), "bf16", vocabulary, TARGETS[2]


def tiled_cases():
    """``(constants, dtype, target)`` of the tiled kernel; the last one's rows begin anywhere."""
    plain, everything = ({"D": WIDTH, "HAS_BIAS": has, "HAS_SOFTCAP": has} for has in (False, True))
    variants = [(plain, "bf16"), (plain, "fp16"), (everything, "bf16"), (everything, "fp32")]
    for (constants, dtype), target in itertools.product(variants, TARGETS):
        yield constants, dtype, target
    yield everything | {"D": ODD_WIDTH}, "fp32", TARGETS[2]


def compile_rows(kernel, constants, dtype, vocabulary, target):
    """As ``launch`` would, with contiguous logits."""
    block, num_warps = launch_settings(vocabulary, target.warp_size, constants.get("HAS_SOFTCAP", False))
    constants = {"UNIT_STRIDE": True} | constants | {"V": vocabulary, "BLOCK": block}
    return compile_kernel(kernel, constants, dtype, target, {"num_warps": num_warps}, aligned=())


def compile_tiles(constants, dtype, target):
    """As ``tiled_token_stats`` would."""
    settings = tile_settings(4 if dtype == "fp32" else 2, target.warp_size)
    blocks = {"BLOCK_M": settings.rows, "BLOCK_N": settings.columns, "BLOCK_K": settings.depth}
    aligned = ["hidden_ptr", "weight_ptr"]
    if constants["D"] % 16 == 0:
        aligned += ["hidden_stride", "weight_stride"]
    options = {"num_warps": settings.num_warps, "num_stages": settings.num_stages}
    constants = constants | blocks | {"V": VOCABULARY}
    return compile_kernel(linear_stats_kernel, constants, dtype, target, options, aligned)


def compile_kernel(kernel, constants, dtype, target, options, aligned):
    """``aligned`` are the arguments that are known to be multiples of 16."""
    signature = {}
    for parameter in kernel.params:
        name = parameter.name
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("logits_ptr", "out_ptr", "hidden_ptr", "weight_ptr", "bias_ptr"):
            signature[name] = "*" + dtype.split("->")[-1 if name == "out_ptr" else 0]
        elif name.endswith("_ptr"):
            signature[name] = POINTER_TYPES.get(name, "*fp32")
        else:
            signature[name] = parameter.annotation_type
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
        attrs={(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    return triton.compile(source, target=target, options=options)


def describe_rows(kernel, constants, dtype, vocabulary, target):
    constants = constants | {"ALIGNED": vocabulary * (4 if dtype == "fp32" else 2) % 16 == 0}  # of both dtypes
    compiled = compile_rows(kernel, constants, dtype, vocabulary, target)
    return describe(compiled, kernel, constants, dtype, target) | {"vocabulary": vocabulary}


def describe_tiles(constants, dtype, target):
    compiled = compile_tiles(constants, dtype, target)
    found = describe(compiled, linear_stats_kernel, constants, dtype, target) | {"vocabulary": VOCABULARY}
    assembly = compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    return found | {
        "uses_matrix_units": bool(re.search(r"\bwgmma|\btcgen05\.mma|\bmma\.sync|\bv_mfma", assembly)),
        "widest_load": max(cuda_copies(assembly) if target.backend == "cuda" else amd_widths("global_load", assembly)),
    }


def describe(compiled, kernel, constants, dtype, target):
    found = {
        "kernel": kernel.__name__,
        "constants": constants,
        "dtype": dtype,
        "target": str(target.arch),
        "shared": compiled.metadata.shared,
    }
    if target.backend == "cuda":
        return found | cuda_resources(compiled)
    return found | amd_resources(compiled)


def cuda_resources(compiled):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    resources = {key: int(value) for key, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    # The loads of a row are those with a cache hint; the others are of single numbers.
    ptx = compiled.asm["ptx"]
    return {
        "registers": resources["REG"],
        "spilled_bytes": resources["STACK"] + resources["LOCAL"],
        "row_load_bytes": cuda_widths(r"ld\.global\S*evict\S*?", ptx),
        "store_bytes": cuda_widths(r"st\.global\S*?", ptx),
    }


def cuda_widths(instruction, ptx):
    found = re.findall(instruction + r"(?:\.v(\d))?\.b(\d+)", ptx)
    return sorted({int(count or 1) * int(bits) // 8 for count, bits in found})


def cuda_copies(ptx):
    """Bytes of the asynchronous copies to shared memory."""
    return {int(size, 16) for size in re.findall(r"cp\.async\.c\S+ .*?, 0x([0-9a-f]+)", ptx)}


def amd_resources(compiled):
    assembly = compiled.asm["amdgcn"]
    numbers = {
        key: int(value) for key, value in re.findall(r"\.(\w+_count|private_segment_fixed_size): +(\d+)", assembly)
    }
    return {
        "registers": numbers["vgpr_count"],
        "spilled_bytes": 4 * numbers["vgpr_spill_count"] + numbers["private_segment_fixed_size"],
        "row_load_bytes": amd_widths("buffer_load", assembly),
        "store_bytes": amd_widths("(?:buffer|global)_store", assembly),
    }


def amd_widths(instruction, assembly):
    sizes = {"dwordx4": 16, "dwordx2": 8, "dword": 4, "ushort": 2, "short": 2, "ubyte": 1, "byte": 1}
    return sorted({sizes[width] for width in re.findall(instruction + r"_([a-z]+(?:x\d)?)\b", assembly)})


if __name__ == "__main__":
    for case in cases():
        print(json.dumps(describe_rows(*case)), flush=True)
    for case in tiled_cases():
        print(json.dumps(describe_tiles(*case)), flush=True)
