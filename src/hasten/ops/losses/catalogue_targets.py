"""Targets of a loss over a catalogue; a query may have several targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64


@dataclass(frozen=True, eq=False)
class CatalogueTargets:
    """P targets of T queries.

    item: int64 [P] catalogue rows. query: int64 [P] the query of each target, ascending. counts:
    [T] targets of each query. query_on_host: ``query``, so that searching it needs no
    synchronization. These are None if each query has exactly one target, in order. largest_count:
    of ``counts``.
    """

    item: Tensor
    query: Tensor | None
    counts: Tensor | None
    query_on_host: Int64 | None
    largest_count: float = 1.0

    @classmethod
    def build(cls, targets: Tensor, query: Tensor | None, rows: int) -> CatalogueTargets:
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

    def places(self, start: int, stop: int, width: int) -> Tensor:
        """int64, of the targets of these rows: their flat indices in [stop - start, width]."""
        if self.query is None:
            begins = torch.arange(0, (stop - start) * width, width, device=self.item.device)
            return begins + self.item[start:stop]
        found = self.within(start, stop)
        return (self.query[found] - start) * width + self.item[found]

    def multiply_by_counts_(self, values: Tensor, start: int) -> Tensor:
        """Multiply each row, in place, by its number of targets. start: the first row's index."""
        if self.counts is not None:
            values *= self.counts[start : start + len(values), None]
        return values


@dataclass(frozen=True, eq=False)
class LabelPairs:
    """The pairs of a query and a true row of a catalogue, in the order of the rows.

    row: int64 [P], the queries; item: int64 [P] ascending; items_on_host: the items again.
    """

    row: Tensor
    item: Tensor
    items_on_host: Int64

    @classmethod
    def build(cls, row: Tensor, item: Tensor) -> LabelPairs:
        """Of pairs in any order; tensors of the host stay there."""
        order = torch.argsort(item, stable=True)
        row, item = row[order], item[order]
        return cls(row, item, item.cpu().numpy())
