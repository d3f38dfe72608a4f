"""Targets of a loss over a catalog; a query may have several targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64


@dataclass(frozen=True, eq=False)
class CatalogTargets:
    """P targets of T queries.

    item: int64 [P] catalog rows. query: int64 [P] the query of each target, ascending. counts:
    [T] targets of each query. query_on_host: ``query``, so that searching it needs no
    synchronization. These are None if each query has exactly one target, in order; counts alone if
    each has one, in any order. largest_count: of ``counts``, or an upper bound. weight: [P] 1, or 0
    for padding, which has any query and item; None: no padding. Targets with padding are not
    searched, so they have no query_on_host.
    """

    item: Tensor
    query: Tensor | None
    counts: Tensor | None
    query_on_host: Int64 | None = None
    largest_count: float = 1.0
    weight: Tensor | None = None

    @classmethod
    def build(cls, targets: Tensor, query: Tensor | None, rows: int) -> CatalogTargets:
        """Of int64 [P] targets and queries, ascending, or of one target of each row.

        Tensors of the host stay there: :func:`~hasten.ops.transfer.to_device` moves them.
        """
        if query is None:
            return cls(targets, None, None, None)
        counts = torch.bincount(query, minlength=rows)
        largest_count = float(counts.max()) if rows else 1.0
        return cls(targets, query, counts, query.cpu().numpy(), largest_count)

    def within(self, start: int, stop: int) -> slice:
        """The slice of the targets of rows ``start`` to ``stop``."""
        if self.query_on_host is None:
            return slice(start, stop)
        return slice(*np.searchsorted(self.query_on_host, [start, stop]).tolist())

    def places(self, start: int, stop: int, width: int) -> tuple[Tensor, Tensor | None]:
        """int64, of the targets of these rows: their flat indices in [stop - start, width].

        Also their weights; None: all are 1. With padding these are all P targets, and those of
        other rows have the weight 0 too.
        """
        if self.query is None:
            begins = torch.arange(0, (stop - start) * width, width, device=self.item.device)
            return begins + self.item[start:stop], None
        if self.weight is not None:
            whole = self.counts is not None and start == 0 and stop == len(self.counts)
            query, weight = _among(self.query, self.weight, start, stop, whole)
            return query * width + self.item, weight
        found = self.within(start, stop)
        return (self.query[found] - start) * width + self.item[found], None

    def multiply_by_counts_(self, values: Tensor, start: int) -> Tensor:
        """Multiply each row, in place, by its number of targets. start: the first row's index."""
        if self.counts is not None:
            values *= self.counts[start : start + len(values), None]
        return values


@dataclass(frozen=True, eq=False)
class LabelPairs:
    """The pairs of a query and a true row of a catalog, in the order of the rows.

    row: int64 [P], the queries; item: int64 [P] ascending; items_on_host: the items again. weight:
    [P] 1, or 0 for padding, which has any row and item; None: no padding. Pairs with padding are in
    any order, and have no items_on_host.
    """

    row: Tensor
    item: Tensor
    items_on_host: Int64 | None = None
    weight: Tensor | None = None

    @classmethod
    def build(cls, row: Tensor, item: Tensor) -> LabelPairs:
        """Of pairs in any order; tensors of the host stay there."""
        order = torch.argsort(item, stable=True)
        row, item = row[order], item[order]
        return cls(row, item, item.cpu().numpy())

    def places(
        self, start: int, stop: int, width: int, found: slice, whole: bool
    ) -> tuple[Tensor, Tensor | None]:
        """int64, of the pairs with items ``start`` to ``stop``: their indices in [items, width].

        Also their weights, as of :meth:`CatalogTargets.places`. found: these pairs, if there is
        no padding. whole: whether these are all items.
        """
        if self.weight is None:
            return (self.item[found] - start) * width + self.row[found], None
        item, weight = _among(self.item, self.weight, start, stop, whole)
        return item * width + self.row, weight


def _among(
    index: Tensor, weight: Tensor, start: int, stop: int, whole: bool
) -> tuple[Tensor, Tensor]:
    """Indices from ``start`` on, and weights; those outside have index and weight 0."""
    if whole:
        return index, weight
    inside = (index >= start) & (index < stop)
    return (index - start) * inside, weight * inside


def without_padding(item: Tensor, weight: Tensor | None) -> Tensor:
    """The items with -1 in the place of padding."""
    return item if weight is None else item.masked_fill(weight == 0, -1)
