"""A sparse square matrix whose rows are divided over processes, and products with sharded tables.

A process holds the rows of its nodes, and the same rows of the transpose: edges are divided by
their destination. A product gathers the table of the nodes from all processes, some columns at a
time, and multiplies them with these rows. The backward pass does the same with those of the
transpose. So every row is the same sum, in the same order, as that of one process.

The buffer of the gathered columns has at most :data:`BUFFER_BYTES` or, if that is more, the size of
the rows of the table that a process holds; never less than one column.

Shapes: N nodes, R of them on this process, E entries, E' of them in its rows, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets
from hasten.data.interactions.clean import stable_order
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.offsets import offset_tensor
from hasten.ops.graph.spmm import product
from hasten.ops.sharded_table import Shard
from hasten.ops.transfer import to_device

#: bytes of gathered columns, unless the rows of a process are larger
BUFFER_BYTES = 1 << 25


@dataclass(frozen=True, eq=False)
class Entries:
    """The entries of R rows: offsets int32 or int64 [R + 1], columns int32 [E'], values [E']."""

    offsets: Tensor
    columns: Tensor
    values: Tensor

    @classmethod
    def build(cls, row: Int64, column: Int64, values: Tensor, rows: int) -> Entries:
        """From entries sorted by row, which is counted from 0."""
        offsets = offset_tensor(ragged_offsets(row, rows))
        return cls(offsets, torch.from_numpy(column.astype(np.int32)), values)

    def times(self, x: Tensor) -> Tensor:
        """[R, D] the product with rows [N, D] of all columns."""
        return product(self.offsets, self.columns, self.values.to(x.dtype), x)


@dataclass(frozen=True, eq=False)
class GraphShard:
    """The rows of a matrix [N, N] of one process.

    shard: of the nodes. rows: of the matrix. transposed: of its transpose; the same object if the
    matrix is symmetric. edges: the shard of the E entries, sorted by row; order_t: int64 [E'], the
    number of the entry of each in ``transposed``; both None if symmetric. on_host: of a part on a
    device the same on the host, with other values, to select the entries of a batch.
    """

    shard: Shard
    rows: Entries
    transposed: Entries
    edges: Shard | None = None
    order_t: Tensor | None = None
    on_host: GraphShard | None = None

    def to(self, device: torch.device) -> GraphShard:
        """The same part for products on a device."""
        if device.type == "cpu":
            return self
        moved = to_device((self.rows, self.transposed, self.order_t), device)
        rows, transposed, order_t = moved
        return replace(self, rows=rows, transposed=transposed, order_t=order_t, on_host=self)

    @classmethod
    def of_edges(cls, shard: Shard, row: Int64, column: Int64, values: Tensor) -> GraphShard:
        """From all entries [E] of the matrix, sorted by row."""
        first, stop, count = shard.first, shard.stop, shard.stop - shard.first
        bounds = np.searchsorted(row, shard.bounds)
        edges = shard.of_rows(len(row), tuple(map(int, bounds)))
        held = slice(edges.first, edges.stop)
        rows = Entries.build(row[held] - first, column[held], values[held].clone(), count)
        number = np.flatnonzero((column >= first) & (column < stop))
        order = number[stable_order(column[number] - first, count)]
        order_t = torch.from_numpy(order)
        of_transpose = column[order] - first, row[order], values.index_select(0, order_t)
        return cls(shard, rows, Entries.build(*of_transpose, count), edges, order_t)

    @classmethod
    def of_pairs(cls, shard: Shard, pairs: CSR, items: int, like: Tensor) -> GraphShard:
        """The ``symmetric`` graph of :class:`.Bipartite`, without the rows of other processes.

        pairs: the distinct items of each user. like: of the type of the values.
        """
        first, stop = shard.first, shard.stop
        degree_u = np.maximum(pairs.lengths, 1).astype(np.float64)
        degree_i = np.maximum(np.bincount(pairs.items, minlength=items), 1).astype(np.float64)
        inside = np.flatnonzero((pairs.items >= first) & (pairs.items < stop))
        of_items = pairs.items[inside]
        order = stable_order(of_items - first, max(1, min(stop, items) - first))
        item = of_items[order]
        user = np.searchsorted(pairs.offsets, inside[order], "right") - 1
        users = np.arange(max(0, first - items), max(0, stop - items), dtype=np.int64)
        of_users = pairs.take(users)
        row = np.concatenate([item, users[of_users.rows] + items])
        column = np.concatenate([user + items, of_users.items])
        item_end = np.concatenate([item, of_users.items])
        user_end = np.concatenate([user, users[of_users.rows]])
        values = torch.from_numpy(1 / np.sqrt(degree_u[user_end] * degree_i[item_end]))
        rows = Entries.build(row - first, column, values.to(like), stop - first)
        return cls(shard, rows, rows)

    def weigh(self, values: Tensor) -> GraphShard:
        """With other values [E'] of the entries of these rows. A collective."""
        assert self.edges is not None
        assert self.order_t is not None
        values = values.to(self.order_t.device)
        of_transpose = values.new_empty(len(self.order_t))
        for start, some in self.edges.rows_by_rank(values):
            inside = (self.order_t >= start) & (self.order_t < start + len(some))
            of_transpose[inside] = some.index_select(0, self.order_t[inside] - start)
        rows = replace(self.rows, values=values)
        return replace(self, rows=rows, transposed=replace(self.transposed, values=of_transpose))

    def multiply(self, x: Tensor) -> Tensor:
        """[R, D] these rows of the matrix times the table; x: [R, D]. A collective."""
        return self._product(self.rows, x)

    def multiply_transposed(self, x: Tensor) -> Tensor:
        """[R, D] these rows of the transpose times the table; x: [R, D]. A collective."""
        return self._product(self.transposed, x)

    def _product(self, entries: Entries, x: Tensor) -> Tensor:
        out = None
        for columns, gathered in self.gathered(x):
            sums = entries.times(gathered)
            if sums.shape == x.shape:
                return sums
            out = torch.empty_like(x) if out is None else out
            out[:, columns] = sums
            del gathered, sums  # before the next columns are gathered
        assert out is not None
        return out

    def gathered(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Columns, and [N, W] these columns of the whole table; x: [R, D]. A collective."""
        for columns in column_blocks(self.shard, x):
            yield columns, self.shard.gather(x[:, columns])


def column_blocks(shard: Shard, x: Tensor) -> list[slice]:
    """The columns that are gathered at a time, the same on all processes; x: [R, D]."""
    width, size = x.shape[1], x.element_size()
    most = max(BUFFER_BYTES, shard.largest * width * size)
    blocks = -(-width // max(1, most // (shard.total * size)))
    step = -(-width // blocks)
    return [slice(start, min(start + step, width)) for start in range(0, width, step)]
