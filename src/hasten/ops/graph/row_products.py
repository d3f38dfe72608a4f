"""Inner products ``a[i] · b[j]`` for every entry (i, j) of a sparse matrix."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from hasten.ops.graph.offsets import row_blocks

#: elements gathered at once, if rows cannot be read in place
_GATHERED = 1 << 24


def row_products(offsets: Tensor, columns: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """[E] ``a[i] · b[j]`` for every entry (i, j), without gradient.

    offsets: int32 or int64 [M + 1] and columns: int32 [E], entries by rows; a: [M, D]; b: [N, D].
    """
    out = a.new_zeros(len(columns))
    if offsets.dtype == torch.int64:
        for part, some, short in row_blocks(offsets):
            out[some] = row_products(short, columns[some], a[part], b)
        return out
    if len(out) and a.device.type == "cpu" and a.dtype in (torch.float32, torch.float64):
        # reads both rows in place, in a quarter of the time of gathering them
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant)")
            matrix = torch.sparse_csr_tensor(offsets, columns, out, (len(a), len(b)))
            products: Tensor = torch.sparse.sampled_addmm(matrix, a, b.T, beta=0.0).values()
            return products
    row, step = rows_of(offsets, len(columns)), max(1, _GATHERED // max(1, a.shape[1]))
    for start in range(0, len(columns), step):
        part = slice(start, start + step)
        left = a.index_select(0, row[part])
        out[part] = torch.linalg.vecdot(left, b.index_select(0, columns[part].long()))
    return out


def rows_of(offsets: Tensor, count: int) -> Tensor:
    """[E] the row of every entry of compressed sparse rows, in the type of the offsets."""
    return torch.repeat_interleave(offsets.diff(), output_size=count)
