"""Products of float32 matrices on the CPU by the faster of torch's two libraries, MKL and oneDNN.

torch computes ``a @ b`` of float32 matrices with MKL. On AMD CPUs with AVX-512, oneDNN, which torch
uses for bfloat16, is 1.1 to 2.3 times faster if ``a`` is row-major (lab log, 2026-11-22; with AVX2
there is no gain), but takes up to 2 ms to prepare for every new shape. So use this function for
large products whose shapes recur. Both sum in float32, in different orders.

MKL uses 256 bits of AMD's vector units. Since family 26 (Zen 5) they have 512, and oneDNN takes
half of MKL's time, for smaller products and with a transposed copy of ``a`` too (2026-11-24).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dtypes import accumulation_dtype

#: least rows of a block where the number of rows varies; the fewer, the shorter is the rest
_BLOCK = 512


def rounded_rows(count: int, least: int = 64) -> int:
    """Round a number of rows up to one of few: at most 16 sizes per power of two, from ``least``.

    For oneDNN, which compiles code for every shape (0.3 to 2 ms), and keeps it (130 to 260 KB).
    """
    step = max(least, 1 << max(0, count.bit_length() - 4))
    return count + -count % step


def padded_rows(x: Tensor) -> Tensor:
    """In bf16 on a CPU: x and rows of zeros up to one of few sizes (see :func:`rounded_rows`)."""
    if x.device.type != "cpu" or x.dtype == accumulation_dtype(x):
        return x
    missing = rounded_rows(len(x)) - len(x)
    return F.pad(x, (0, 0, 0, missing)) if missing else x


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` [M, N] of [M, K] and [K, N], without gradient."""
    if not uses_onednn(a, b):
        return a @ b
    return _onednn(a.contiguous(), _dense(b).T)


def product_into(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Write ``a @ b`` into ``out`` [M, N], which may have another dtype."""
    if out.dtype != a.dtype or uses_onednn(a, b):
        out.copy_(product(a, b))
    else:
        torch.mm(a, b, out=out)


def product_by_blocks(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """:func:`product` for numbers of rows M that vary: oneDNN gets blocks of the same size."""
    step = block_rows(*b.shape)
    if not uses_onednn(a[:step], b):
        return torch.mm(a, b, out=out)
    if out is None:
        out = a.new_empty(len(a), b.shape[1])
    for rows in _blocks(len(a), step):
        if rows.stop - rows.start == step:
            out[rows] = product(a[rows], b)
        else:
            torch.mm(a[rows], b, out=out[rows])
    return out


def outer_by_blocks(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """``aᵀ @ b`` [K, N] of [M, K] and [M, N], for M that varies, as :func:`product_by_blocks`."""
    step = block_rows(a.shape[1], b.shape[1])
    if not uses_onednn(a[:step].T, b[:step]):
        return torch.mm(a.T, b, out=out)
    total = a.new_zeros(a.shape[1], b.shape[1]) if out is None else out.zero_()
    for rows in _blocks(len(a), step):
        left, right = a[rows].T, b[rows]
        total += product(left, right) if rows.stop - rows.start == step else left @ right
    return total


def block_rows(inner: int, columns: int) -> int:
    """The rows of a block that is multiplied by a matrix [inner, columns]: enough for oneDNN."""
    return max(_BLOCK, 1 << ((MIN_SPLIT_PRODUCT - 1) // max(1, inner * columns)).bit_length())


def _blocks(count: int, step: int) -> Iterator[slice]:
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def product_plus(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    """``a @ b + bias`` [M, N], bias [N], without gradient."""
    if not uses_onednn(a, b) or not a.is_contiguous():
        return torch.addmm(bias, a, b)
    return _onednn(a, _dense(b).T, bias)


def _dense(b: Tensor) -> Tensor:
    """A contiguous copy of a slice of a wider matrix: with strided rows oneDNN takes seconds."""
    return b if b.is_contiguous() or b.T.is_contiguous() else b.contiguous()


def uses_onednn(a: Tensor, b: Tensor) -> bool:
    """Whether ``a @ b`` is large and float32, on a CPU where oneDNN is faster in this layout."""
    return (
        a.dtype == b.dtype == torch.float32
        and a.device.type == "cpu"
        and a.shape[0] * a.shape[1] * b.shape[1] >= MIN_SPLIT_PRODUCT
        and (a.is_contiguous() or b.shape[1] >= _COLUMNS)
        and onednn_is_faster()
    )


def onednn_is_faster() -> bool:
    """Whether torch has oneDNN and MKL, and oneDNN was measured to be faster on such a CPU."""
    return _FASTER


def _detect() -> tuple[bool, bool]:
    """Whether oneDNN is faster on this CPU, and whether its vector units have 512 bits."""
    mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if not mkl or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False, False
    try:
        cpu_info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False, False
    family = re.search(r"^cpu family\s*: (\d+)$", cpu_info, re.MULTILINE)
    faster = "AuthenticAMD" in cpu_info and "avx512f" in cpu_info
    return faster, faster and family is not None and int(family[1]) >= 26


#: detected at import, because torch.compile cannot trace it
_FASTER, _WIDE = _detect()
#: multiplications below which the overhead of the call exceeds the gain
MIN_SPLIT_PRODUCT = 1 << 24 if _WIDE else 1 << 26
#: columns of b above which a transposed copy of ``a`` is worth its cost
_COLUMNS = 64 if _WIDE else 1024


def _onednn(a: Tensor, rows: Tensor, bias: Tensor | None = None) -> Tensor:
    """``a @ rows.T + bias`` by the operation of torch's compiled linear layers."""
    # Inductor lowers this operation only where it inserted it itself
    call: Any = _opaque if torch.compiler.is_compiling() else _call
    result: Tensor = call(a, rows, bias)
    return result


def _call(a: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    operation: Any = torch.ops.mkldnn._linear_pointwise
    result: Tensor = operation(a, rows, bias, "none", [], "")
    return result


_opaque = torch.library.custom_op("hasten::onednn_linear", _call, mutates_args=())
_opaque.register_fake(lambda a, rows, _bias: a.new_empty(a.shape[0], rows.shape[0]))
