"""Some rows of the powers of a matrix times a table, both sharded over processes.

``x[rows]`` and the sum over k = 1 ... K of ``(A^k x)[rows]``, for the S nodes of a batch, which are
equal on all processes. All but the last product are of all nodes (:mod:`.graph_shard`). For the
last one each process adds up what its nodes contribute to the S rows, and these sums are added over
processes: 4 S D bytes are exchanged in the place of 4 N D, and entries of other rows cost no
multiplication; a process visits its entries once to select them.

The gradients of the S rows are summed over processes first. So each process passes the gradient of
its share of the batch, and what lies between these rows and its loss is computed on all processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import ragged_offsets
from hasten.data.interactions.clean import stable_order
from hasten.ops.dtypes import autocast_dtype, upcast
from hasten.ops.graph.graph_shard import Entries, GraphShard
from hasten.ops.graph.offsets import offset_tensor
from hasten.ops.graph.row_products import rows_of
from hasten.ops.graph.spmm_rows import pick, places
from hasten.ops.sharded_table import Shard


@dataclass(frozen=True, eq=False)
class RequestedNodes:
    """Nodes of a batch, and the entries of their rows in the columns of this process.

    rows: int64 [S] ascending, on all processes. starts: [P + 1] where those of each process begin.
    held: which of them this process holds; local: int64, their numbers among its nodes. of_rows: S
    rows whose columns are nodes of this process. of_nodes: the transpose, a row for each node of
    this process.
    """

    shard: Shard
    rows: Tensor
    starts: list[int]
    held: slice
    local: Tensor
    of_rows: Entries
    of_nodes: Entries

    @classmethod
    def of(cls, part: GraphShard, rows: Tensor) -> RequestedNodes:
        """Of these nodes: int64 [S] ascending, the same on all processes, on the host."""
        transposed, count = (part.on_host or part).transposed, len(rows)
        place = pick(places(rows, part.shard.total), transposed.columns)
        inside = place.numpy() < count
        index = torch.from_numpy(np.flatnonzero(inside))
        place = pick(place, index)
        values = index if part.on_host is not None else pick(transposed.values, index)
        before = np.append(0, np.cumsum(inside))
        offsets = offset_tensor(before[transposed.offsets.numpy()])
        order = stable_order(place.numpy().astype(np.int64), count)
        node = pick(rows_of(offsets, len(place)).int(), torch.from_numpy(order))
        of_rows = Entries(
            offset_tensor(ragged_offsets(place.numpy(), count)),
            node,
            pick(values, torch.from_numpy(order)),
        )
        held, local = part.shard.held(rows)
        starts, of_nodes = part.shard.places(rows), Entries(offsets, place, values)
        return cls(part.shard, rows, starts, held, local, of_rows, of_nodes)

    def weighed(self, part: GraphShard) -> RequestedNodes:
        """With the values of a part on a device, of which :meth:`of` has taken the numbers."""
        if part.on_host is None:
            return self
        of_rows, of_nodes = (
            replace(each, values=part.transposed.values.index_select(0, each.values))
            for each in (self.of_rows, self.of_nodes)
        )
        return replace(self, of_rows=of_rows, of_nodes=of_nodes)

    def exchange(self, x: Tensor) -> Tensor:
        """[S, D] the rows of these nodes; x: those of this process. A collective."""
        found: Tensor = _Exchanged.apply(self, x)  # type: ignore[no-untyped-call]
        return found


def propagated_rows(
    part: GraphShard, x: Tensor, nodes: RequestedNodes, layers: int
) -> tuple[Tensor, Tensor]:
    """[S, D] the requested rows of ``x``, and of the sum of its 1st to K-th products.

    x: [R, D] the rows of this process; layers: K; products are in bf16 under autocast. With K = 1
    the result is that of :func:`.spmm_rows`. A collective, forward and backward.
    """
    found: tuple[Tensor, Tensor] = _PropagatedRows.apply(  # type: ignore[no-untyped-call]
        part, nodes.weighed(part), layers, autocast_dtype(x), x
    )
    return found


class _PropagatedRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        part: GraphShard,
        nodes: RequestedNodes,
        layers: int,
        dtype: torch.dtype,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.part, ctx.nodes, ctx.layers, ctx.dtype, ctx.kind = part, nodes, layers, dtype, x.dtype
        power, powers = x.to(dtype), []
        for _ in range(layers - 1):
            power = part.multiply(power)
            powers.append(power.index_select(0, nodes.local))
        sums = upcast(nodes.of_rows.times(power))
        for rows in powers:
            sums[nodes.held] += rows
        sums = part.shard.sum_(sums).to(dtype)
        return part.shard.exchange(nodes.starts, x.index_select(0, nodes.local)), sums

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor, grad_sums: Tensor) -> tuple[Tensor | None, ...]:
        part, nodes, kind = ctx.part, ctx.nodes, ctx.kind
        both = torch.stack([grad_rows.to(kind), grad_sums.to(kind)])
        grad_rows, grad_sums = part.shard.sum_(both).unbind()
        low = grad_sums.to(ctx.dtype)
        grad = nodes.of_nodes.times(low)
        for _ in range(ctx.layers - 1):
            grad.index_add_(0, nodes.local, low[nodes.held])
            grad = part.multiply_transposed(grad)
        grad = grad.to(kind)
        grad.index_add_(0, nodes.local, grad_rows[nodes.held])
        return None, None, None, None, grad


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, nodes: RequestedNodes, x: Tensor) -> Tensor:
        ctx.nodes = nodes
        return nodes.shard.exchange(nodes.starts, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        nodes = ctx.nodes
        total: Tensor = nodes.shard.sum_(grad.clone())
        return None, total[nodes.held]
