"""Some rows of a sparse-dense product, forward and backward.

``out = (A x)[rows]`` for the nodes of a batch: entries of other rows cost nothing. One function
returns the rows of x and their sums, because their gradients are added in one table.

On CUDA, all entries of a graph that is not very large are visited: that takes fewer launches, their
shapes are those of every batch, and the host has nothing to select.

Shapes: N columns of the graph, S requested rows, R rows of ``x``, E' their entries, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import ragged_positions
from hasten.data.interactions.clean import stable_order
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.offsets import offset_tensor, offset_type
from hasten.ops.graph.row_products import rows_of
from hasten.ops.graph.spmm import EdgeWeights, Path, SparseGraph, product
from hasten.ops.transfer import to_device

#: entries of a graph, above which CUDA too visits only those of the rows. An estimate, not measured
#: on a GPU: 2^25 entries of width 64 are 8 GB that are gathered, some 5 ms, and as long as the host
#: takes to select those of a few thousand rows
MAX_VISITED_ENTRIES = 1 << 25


def spmm_rows(
    graph: SparseGraph,
    weights: EdgeWeights,
    x: Tensor,
    rows: Tensor | RowPositions,
    path: Path | None = None,
    among: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """[S, D] the given rows of ``x``, and the same rows of :func:`spmm`.

    x: [M, D] with one row per column of the graph, or [R, D] with the rows of ``among``; rows:
    int64 [S] on the host, distinct, or their positions on the device; among: int64 [R] ascending,
    the rows and all their neighbors. One function returns both, because their gradients are added
    in one table.
    """
    if isinstance(rows, Tensor):
        rows = to_device(RowPositions.of(graph, rows), x.device)
    return row_sums(RowEntries.of(graph, weights, rows, among), x, path)


def row_sums(entries: RowEntries, x: Tensor, path: Path | None = None) -> tuple[Tensor, Tensor]:
    """:func:`spmm_rows` with the entries already selected, for several ``x``."""
    found: tuple[Tensor, Tensor] = _SpmmRows.apply(  # type: ignore[no-untyped-call]
        entries, path, autocast_dtype(x), x
    )
    return found


def with_neighbors(graph: SparseGraph, rows: Tensor) -> Tensor:
    """int64 [R] ascending, on the host: these rows and the columns of their entries.

    rows: int64 [S] on the host. The graph is square.
    """
    positions, _ = ragged_positions(graph.bounds, rows.numpy())
    needed = torch.zeros(graph.shape[0], dtype=torch.bool)
    needed[graph.host_columns.index_select(0, torch.from_numpy(positions)).long()] = True
    needed[rows] = True
    return torch.nonzero(needed).view(-1)


class _SpmmRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        entries: RowEntries,
        path: Path | None,
        dtype: torch.dtype,
        x: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.entries, ctx.kind = entries, x.dtype
        values = entries.values.to(dtype)
        sums = product(entries.offsets, entries.columns, values, x.to(dtype), path)
        if entries.whole:
            sums = sums.index_select(0, entries.own)
        return x.index_select(0, entries.own), sums

    @staticmethod
    def backward(ctx: Any, grad_own: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_x = ctx.entries.spread(grad.to(ctx.kind))
        grad_x.index_add_(0, ctx.entries.own, grad_own.to(ctx.kind))
        return None, None, None, grad_x


def pick(numbers: Tensor, place: Tensor) -> Tensor:
    """[S] the numbers at these indices; numpy takes a third of torch's time."""
    if numbers.device.type != "cpu":
        return numbers.index_select(0, place)
    return torch.from_numpy(numbers.numpy().take(place.numpy()))


def places(rows: Tensor, count: int) -> Tensor:
    """int32 [count]: the index of each number in the rows (int64 [R]); R if it is none of them."""
    place = torch.full((count,), len(rows), dtype=torch.int32, device=rows.device)
    place[rows] = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
    return place


def visits_all(graph: SparseGraph) -> bool:
    """Whether products for a few rows of this graph visit all of its entries."""
    return graph.columns.device.type == "cuda" and len(graph) <= MAX_VISITED_ENTRIES


@dataclass(frozen=True, eq=False)
class RowPositions:
    """Rows of a graph and where their entries are: all that comes from the host.

    rows: int64 [S], distinct, or with repetitions of which all but the first are not used;
    position: int64 [E'], indices into the graph's columns; offsets: [S + 1], of the type that
    :mod:`.offsets` gives. position and offsets are None where products visit all entries
    (:func:`visits_all`).
    """

    rows: Tensor
    position: Tensor | None
    offsets: Tensor | None

    @classmethod
    def of(cls, graph: SparseGraph, rows: Tensor) -> RowPositions:
        """Of these rows (on the host)."""
        if visits_all(graph):
            return cls(rows, None, None)
        positions, offsets = ragged_positions(graph.bounds, rows.numpy())
        return cls(rows, torch.from_numpy(positions), offset_tensor(offsets))


@dataclass(frozen=True, eq=False)
class RowEntries:
    """The entries of some rows of a graph, for the product and for its transpose (backward).

    rows: int64 [S], as of :class:`RowPositions`; own: the same; offsets: [S + 1], columns: [E'] and
    values: [E'], their entries as in :class:`SparseGraph`. With ``among``, int64 [R] ascending, own
    and columns are indices into it. whole: the entries are those of all rows.
    """

    graph: SparseGraph
    weights: EdgeWeights
    among: Tensor | None
    rows: Tensor
    own: Tensor
    offsets: Tensor
    columns: Tensor
    values: Tensor
    whole: bool = False

    @classmethod
    def of(
        cls,
        graph: SparseGraph,
        weights: EdgeWeights,
        chosen: RowPositions,
        among: Tensor | None = None,
    ) -> RowEntries:
        """The entries of these rows; with ``among`` None, ``x`` has all N rows."""
        position, own = chosen.position, chosen.rows
        if position is None or chosen.offsets is None:
            assert among is None, "all entries are visited, so x needs all rows"
            everything = graph.offsets, graph.columns, weights.values
            return cls(graph, weights, None, own, own, *everything, whole=True)
        columns = pick(graph.columns, position)
        if among is not None:
            place = places(among, graph.shape[1])
            own = place.gather(0, own).long()
            columns = place.gather(0, columns.long())
        values = pick(weights.values, position)
        return cls(graph, weights, among, chosen.rows, own, chosen.offsets, columns, values)

    @property
    def count(self) -> int:
        """The number of rows of ``x``, N or R."""
        return self.graph.shape[1] if self.among is None else len(self.among)

    def spread(self, grad: Tensor) -> Tensor:
        """[N, D], or [R, D] with ``among``: the transpose times ``grad`` [S, D].

        The product with the stored transpose visits all E entries, sorting the E' requested ones; a
        visit costs about a quarter of a sorted entry.
        """
        if self.whole:
            table = grad.new_zeros(self.graph.shape[0], grad.shape[1])
            table.index_add_(0, self.own, grad)
            values = self.weights.transposed.to(grad.dtype)
            return product(self.graph.offsets_t, self.graph.columns_t, values, table)
        if self.columns.device.type != "cpu":
            return self.spread_added(grad)
        if 4 * len(self.columns) > len(self.graph):
            return self.spread_stored(grad)
        return self.spread_sorted(grad)

    def spread_added(self, grad: Tensor) -> Tensor:
        """Add the entries in their own order."""
        messages = grad.index_select(0, self._row).mul_(self.values.to(grad.dtype)[:, None])
        out = messages.new_zeros(self.count, grad.shape[1])
        return out.index_add_(0, self.columns, messages)

    @cached_property
    def _row(self) -> Tensor:
        """int32 [E'] the row of every entry."""
        return rows_of(self.offsets, len(self.columns))

    def spread_sorted(self, grad: Tensor) -> Tensor:
        """Add in the order of the columns; sorting takes a fifth of the time of adding unsorted."""
        bounds, rows, values = self._sorted
        return product(bounds, rows, values.to(grad.dtype), grad)

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor, Tensor]:
        """Offsets, columns and values of the transpose."""
        columns = self.columns
        order = torch.from_numpy(stable_order(columns.numpy().astype(np.int64), self.count))
        bounds = torch.zeros(self.count + 1, dtype=offset_type(len(columns)))
        torch.cumsum(torch.bincount(columns, minlength=self.count), 0, out=bounds[1:])
        return bounds, pick(self._row, order), pick(self.values, order)

    def spread_stored(self, grad: Tensor) -> Tensor:
        """Multiply by the graph's stored transpose; entries of other rows read a row of zeros."""
        graph = self.graph
        with_zeros = torch.cat([grad, grad.new_zeros(1, grad.shape[1])])
        values = self.weights.transposed.to(grad.dtype)
        out = product(graph.offsets_t, self._place_t, values, with_zeros)
        return out if self.among is None else out.index_select(0, self.among)

    @cached_property
    def _place_t(self) -> Tensor:
        """int32 [E]: of each entry of the stored transpose, its row's index in ``rows``, or S."""
        return places(self.rows, self.graph.shape[0]).index_select(0, self.graph.columns_t)
