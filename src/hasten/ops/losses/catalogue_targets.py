"""The targets of a loss over a catalogue, of which a row may have several."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class CatalogueTargets:
    """The targets of rows of a catalogue's scores.

    item, query: int64 [P]. counts: [T] targets of each row; None if each has one, in order.

    given: the query as it was given, on the host or not; most: the largest count.
    """

    item: Tensor
    query: Tensor
    counts: Tensor | None
    given: Tensor
    most: float = 1.0

    @classmethod
    def build(
        cls, targets: Tensor, query: Tensor | None, rows: int, dtype: torch.dtype
    ) -> CatalogueTargets:
        if query is None:
            query = torch.arange(rows, device=targets.device)
            return cls(targets, query, None, query)
        counts, device = torch.bincount(query, minlength=rows), targets.device
        most = float(counts.max()) if dtype == torch.float16 and rows else 1.0
        return cls(targets, query.to(device), counts.to(device), query, most)

    def within(self, start: int, stop: int) -> slice:
        """The slice of the targets of rows ``start`` to ``stop``."""
        if self.counts is None:
            return slice(start, stop)
        edges = torch.tensor([start, stop], device=self.given.device)
        return slice(*torch.searchsorted(self.given, edges).tolist())

    def multiply_by_counts_(self, values: Tensor, start: int) -> Tensor:
        """Multiply each row, in place, by its number of targets. start: the first row's index."""
        if self.counts is not None:
            values *= self.counts[start : start + len(values), None]
        return values
