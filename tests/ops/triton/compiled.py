"""Compiles the kernels for GPUs that need not be there: bytes and registers, as JSON lines.

python -m tests.ops.triton.compiled
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hasten.ops.triton import (
    catalog_gradients,
    cross_entropy,
    edge_attention,
    interval_attention,
    one_to_many,
)
from hasten.ops.triton.choice import LARGEST_HEAD_BYTES
from hasten.ops.triton.interval_attention import BLOCK, _Launch
from hasten.ops.triton.tiles import Tiling

ASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
NAMES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}
INTEGERS = (
    *("target_item", "target_query", "starts", "times", "seed"),
    *("edge", "ends", "offsets", "part_row", "part_first", "long_row", "long_parts"),
)
FLOATS = ("share", "hit", "drop")
#: arguments of the type of the products; other tensors are float32
LOW = ("x", "table", "own", "other", "query", "key", "value", "grad", "mapped", "grads")
NUMBERS = (
    *("queries", "items", "per_split", "own_rows", "other_rows", "across"),
    *("start", "length", "heads", "tokens", "span", "longest"),
    *("parts", "query_stride", "slots_stride", "head_stride", "row_stride"),
)
SINGLE = {"target_query": None, "starts": None}


def compiled(
    kernel: Any, kind: torch.dtype, capability: int, options: dict[str, int], **constants: Any
) -> dict[str, Any]:
    """The shared memory, registers and spilled bytes of a kernel."""
    sizes = {name: value for name, value in options.items() if not name.startswith("num_")}
    fixed = {**constants, **sizes}

    def type_of(name: str) -> str:
        if name in fixed:
            return "constexpr"
        if name in NUMBERS:
            return "i32"
        if name in INTEGERS:
            return "*i64"
        if name in FLOATS:
            return "fp32"
        if name == "keep":
            return "*i1"
        return NAMES[kind] if name in LOW else "*fp32"

    types = {name: type_of(name) for name in kernel.arg_names}
    aligned = {
        (number,): [["tt.divisibility", 16]]
        for number, name in enumerate(types)
        if types[name].startswith("*")
    }
    source = ASTSource(kernel, types, constexprs=fixed, attrs=aligned)
    launch = {name: value for name, value in options.items() if name.startswith("num_")}
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch)
    name = "sm_90a" if capability == 90 else f"sm_{capability}"
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(found.asm["ptx"])
        file.flush()
        command = [str(ASSEMBLER), "-v", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "kernel": f"{kernel.fn.__name__} {capability} {kind} {sizes} {constants}",
        "shared": found.metadata.shared,
        "registers": int(re.findall(r"Used (\d+) registers", report)[0]),
        "spilled": int(re.findall(r"(\d+) bytes spill stores", report)[0]),
    }


def all_kernels(capability: int) -> Iterator[dict[str, Any]]:
    for kind in (torch.bfloat16, torch.float32):
        for width in (50, 128, 200):
            x = torch.empty(1, width)
            of_lists = Tiling.of(x, kind, lists=True).options
            of_one = Tiling.of(x, kind).options
            one = {**SINGLE, "bias": None}
            yield compiled(cross_entropy._log_sum_exp, kind, capability, of_one, **one)
            yield compiled(one_to_many._losses, kind, capability, of_lists)
            kernel, one = catalog_gradients._gradient, {**one, "counts": None, "bias_out": None}
            sigmoid = {"lse": None, "counts": None}
            for of_table in (False, True):
                of = {"OF_TABLE": of_table}
                yield compiled(kernel, kind, capability, of_one, **of, **one)
                yield compiled(kernel, kind, capability, of_lists, **of, **sigmoid)
        for width in (50, LARGEST_HEAD_BYTES // kind.itemsize):
            options = _Launch([], 0, 1, width, 0, 0.0, BLOCK).options
            yield compiled(interval_attention._forward, kind, capability, options)
            for of_keys in (False, True):
                of = {"OF_KEYS": of_keys}
                yield compiled(interval_attention._backward, kind, capability, options, **of)
        # the guide's heads, the widest rows, and heads that are no powers of two
        for heads, size in ((8, 32), (4, 256), (3, 50)):
            options = edge_attention.options(heads, size)
            yield compiled(edge_attention._forward, kind, capability, options)
            for of_slot in (False, True):
                of = {"OF_SLOT": of_slot}
                yield compiled(edge_attention._backward, kind, capability, options, **of)
            yield compiled(edge_attention._merge, kind, capability, options)


if __name__ == "__main__":
    for each in (80, 90):
        for one in all_kernels(each):
            print(json.dumps(one), flush=True)
