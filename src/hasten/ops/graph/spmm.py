"""Sparse-dense products over a fixed graph, forward and backward, one fast path per device type.

``out[i] = sum over the entries e of row i of  values[e] * x[columns[e]]``. The graph does not
change during training, so it is transposed once and the backward pass is the same operation on the
transpose:

- CPU: ``embedding_bag`` with per-sample weights, row by row, nothing materialized (its own backward
  pass would take some 20 times as long);
- CUDA: a compressed sparse row matrix, whose product (cuSPARSE) adds in any order: under
  ``torch.use_deterministic_algorithms``, the way of other devices;
- other devices (MPS has no sparse tensors): gather, multiply, ``index_add``, in chunks of entries.

Values may need a gradient too: it is ``grad[i] · x[j]`` for the entry (i, j). More entries than
int32 numbers are multiplied in blocks of rows (:mod:`.offsets`).

Shapes: M rows, N columns, E entries, D width.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets
from hasten.data.interactions.clean import stable_order
from hasten.errors import DataError
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.embedding_bag import embedding_bag_sums
from hasten.ops.graph.offsets import MAX_ENTRIES, offset_tensor, row_blocks
from hasten.ops.graph.row_products import row_products, rows_of

Path = Literal["bag", "csr", "gather"]
#: elements that the gather path holds at once
_GATHERED = 1 << 24


@dataclass(frozen=True, eq=False)
class SparseGraph:
    """The positions of the entries of an [M, N] matrix, by rows, and by rows of the transpose.

    offsets: int32 [M + 1], int64 if there are more entries than int32 numbers; columns: int32 [E];
    of the transpose: offsets_t [N + 1], columns_t [E]; order_t: int64 [E], the entry of the matrix
    for each entry of the transpose; bounds and host_columns: the offsets, int64, and the columns on
    the host.
    """

    offsets: Tensor
    columns: Tensor
    offsets_t: Tensor
    columns_t: Tensor
    order_t: Tensor
    bounds: Int64
    host_columns: Tensor

    @classmethod
    def build(cls, row: Int64, column: Int64, rows: int, columns: int) -> SparseGraph:
        """From entries sorted by row (int64 [E]); a pair may occur several times.

        Raises DataError for more rows or columns than int32 numbers.
        """
        if max(rows, columns) > MAX_ENTRIES:
            raise DataError(
                f"a graph of {max(rows, columns):,} nodes, and at most {MAX_ENTRIES:,} fit"
            )
        assert np.all(row[1:] >= row[:-1]), "entries must come row by row"
        order, bounds = stable_order(column, columns), ragged_offsets(row, rows)
        offsets, offsets_t = offset_tensor(bounds), offset_tensor(ragged_offsets(column, columns))
        own, own_t = (torch.from_numpy(ids.astype(np.int32)) for ids in (column, row[order]))
        return cls(offsets, own, offsets_t, own_t, torch.from_numpy(order), bounds, own)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.offsets) - 1, len(self.offsets_t) - 1

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        """int64 [E] the row of every entry."""
        return rows_of(self.offsets, len(self)).long()

    def to(self, device: torch.device) -> SparseGraph:
        return SparseGraph(
            self.offsets.to(device),
            self.columns.to(device),
            self.offsets_t.to(device),
            self.columns_t.to(device),
            self.order_t.to(device),
            self.bounds,
            self.host_columns,
        )

    def weigh(self, values: Tensor, memory: EdgeWeights | None = None) -> EdgeWeights:
        """Values [E] of the entries in both orders, to use in several products.

        memory: earlier values that are overwritten on CUDA, if there were as many: a CUDA graph
        reads the memory of its recording.
        """
        transposed = values.index_select(0, self.order_t)
        if memory is None or values.device.type != "cuda" or len(memory.values) != len(values):
            return EdgeWeights(values, transposed)
        memory.values.copy_(values)
        memory.transposed.copy_(transposed)
        return memory


@dataclass(frozen=True, eq=False)
class EdgeWeights:
    """The values of a graph's entries, in the order of the matrix and of its transpose: [E]."""

    values: Tensor
    transposed: Tensor


def spmm(
    graph: SparseGraph, weights: EdgeWeights | Tensor, x: Tensor, path: Path | None = None
) -> Tensor:
    """[M, D]: the matrix with these values times ``x`` [N, D]; under autocast in bf16.

    weights: from :meth:`SparseGraph.weigh`, without gradient, or values [E], with gradient. path:
    the implementation; None: the fastest on the device of ``x``.
    """
    if isinstance(weights, Tensor):
        values, transposed = weights, None
    else:
        values, transposed = weights.values, weights.transposed
    out: Tensor = _Spmm.apply(  # type: ignore[no-untyped-call]
        graph, path, autocast_dtype(x), x, values, transposed
    )
    return out


def _path_of(x: Tensor) -> Path:
    """The fastest implementation on the device of ``x``."""
    if x.device.type == "cpu":
        return "bag"
    if torch.are_deterministic_algorithms_enabled():
        return "gather"
    return "csr" if x.device.type == "cuda" else "gather"


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        graph: SparseGraph,
        path: Path | None,
        dtype: torch.dtype,
        x: Tensor,
        values: Tensor,
        transposed: Tensor | None,
    ) -> Tensor:
        low = x.to(dtype)
        ctx.graph, ctx.path, ctx.dtype, ctx.kind = graph, path, dtype, x.dtype
        ctx.save_for_backward(low if values.requires_grad else None, values, transposed)
        return product(graph.offsets, graph.columns, values.to(dtype), low, path)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        low, values, transposed = ctx.saved_tensors
        graph: SparseGraph = ctx.graph
        grad = grad.to(ctx.dtype).contiguous()
        grad_x = grad_values = None
        if ctx.needs_input_grad[3]:
            if transposed is None:
                transposed = values.index_select(0, graph.order_t)
            grad_x = product(
                graph.offsets_t, graph.columns_t, transposed.to(ctx.dtype), grad, ctx.path
            ).to(ctx.kind)
        if ctx.needs_input_grad[4]:
            grad_values = row_products(graph.offsets, graph.columns, grad, low).to(values.dtype)
        return None, None, None, grad_x, grad_values, None


def product(
    offsets: Tensor, columns: Tensor, values: Tensor, x: Tensor, path: Path | None = None
) -> Tensor:
    """[M, D]: the product of entries sorted by row (see :class:`SparseGraph`), without gradient."""
    rows, path = len(offsets) - 1, path or _path_of(x)
    if offsets.dtype == torch.int64:
        out = x.new_empty(rows, x.shape[1])
        for part, some, short in row_blocks(offsets):
            out[part] = product(short, columns[some], values[some], x, path)
        return out
    if path == "bag":
        return embedding_bag_sums(offsets, columns, values, x)
    if path == "csr":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant)")
            return torch.sparse_csr_tensor(offsets, columns, values, (rows, len(x))) @ x
    out = x.new_zeros(rows, x.shape[1])
    row = rows_of(offsets, len(columns))
    step = max(1, _GATHERED // max(1, x.shape[1]))
    for start in range(0, len(columns), step):
        part = slice(start, start + step)
        messages = x.index_select(0, columns[part].long()).mul_(values[part, None])
        out.index_add_(0, row[part], messages)
    return out
