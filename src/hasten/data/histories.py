"""The items of users or queries in order, in memory or in the mapped files of a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hasten.arrays import Int64
from hasten.data.event_features import EventEntries


@dataclass(frozen=True, eq=False)
class Histories:
    """Ragged lists of items, one a row, oldest first (compressed sparse rows).

    offsets: int64 [Q+1]; items: int64 [n]; times: int64 [n] unix seconds or None. Of a store: the
    items are int32 and both are mapped files, in which row i ends at stops[i] (int64 [Q]) if there
    are other events between the rows; :meth:`take` makes rows in memory of them. features: of
    the events, None if the data have none.
    """

    offsets: Int64
    items: Int64
    times: Int64 | None = None
    stops: Int64 | None = None
    features: EventEntries | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64:
        return self.ends - self.offsets[:-1]

    @property
    def ends(self) -> Int64:
        """int64 [Q] where each row ends."""
        return self.offsets[1:] if self.stops is None else self.stops

    @property
    def mapped(self) -> bool:
        """Whether the items are in a mapped file."""
        return self.items.dtype != np.int64

    def blocks(self, events: int = 1 << 22) -> Iterator[Histories]:
        """Consecutive rows in memory, about so many events at a time."""
        if not self.mapped:
            yield self
            return
        bounds = np.searchsorted(self.offsets, range(0, int(self.offsets[-1]), events))
        for first, last in pairwise([*np.unique(bounds).tolist(), len(self)]):
            yield self.take(np.arange(first, last))

    def in_memory(self) -> Histories:
        """All rows in memory, one after the other."""
        return self.take(np.arange(len(self))) if self.mapped else self

    def take(self, rows: Int64) -> Histories:
        """The given rows, in the given order (with repetition), in memory."""
        begins = self.offsets[rows]
        lengths = self.ends[rows] - begins
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        positions = np.arange(offsets[-1]) + np.repeat(begins - offsets[:-1], lengths)
        times = None if self.times is None else self.times[positions]
        items = self.items[positions].astype(np.int64, copy=False)
        features = None if self.features is None else self.features.take(positions)
        return Histories(offsets, items, times, features=features)
