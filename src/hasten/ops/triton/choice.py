"""When an operation runs as a Triton kernel instead of as PyTorch operations."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

#: the widest rows: a tile holds whole rows in shared memory and its sums in registers
LARGEST_WIDTH = 256
#: the widest heads of interval attention, of which a program holds twice as many tiles
LARGEST_HEAD_BYTES = 256
#: the widest rows of edge attention, with heads and their widths padded to powers of two
LARGEST_PADDED_WIDTH = 1024
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_used: set[str] = set()


def uses_triton(
    operation: str, x: Tensor, width: int, dtype: torch.dtype, *, products: bool = True
) -> bool:
    """Whether the kernels of this operation can take x [T, D], and note it if so.

    They need a tensor on an NVIDIA GPU of compute capability 8.0 or later, the ``triton`` package,
    rows that fit, and products on tensor cores: in float32 only where TF32 is allowed. In full
    float32 the products, computed again, cost as much as reading and writing the scores.
    width: of the rows of a tile. dtype: of the products. products: whether they are products of
    matrices.
    """
    if x.device.type != "cuda" or not (0 < width <= LARGEST_WIDTH and len(x) and dtype in _DTYPES):
        return False
    full = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    if (products and full) or not has_triton(x.device):
        return False
    _used.add(operation)
    return True


def has_triton(device: torch.device) -> bool:
    """Whether kernels can run on this device."""
    return device.type == "cuda" and _installed() and _is_supported(device)


def operations_in_triton() -> list[str]:
    """The operations that ran as Triton kernels in this process."""
    return sorted(_used)


@cache
def _installed() -> bool:
    """Whether there is Triton; the environment's HASTEN_TRITON=off hides it."""
    return find_spec("triton") is not None and os.environ.get("HASTEN_TRITON") != "off"


@cache
def _is_supported(device: torch.device) -> bool:
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)
