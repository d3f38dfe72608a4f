"""Targets and excluded candidates of a ranking, on the device of the scores.

Sizes are known on the host as well, so that no operation has to wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hasten.ops.graph.csr import CSR


@dataclass(frozen=True, eq=False)
class ListedIds:
    """A CSR with a row for each query. offsets: int64 [Q + 1]; items: int64 [n], on the device."""

    host: CSR
    offsets: Tensor
    items: Tensor

    @classmethod
    def of(cls, lists: CSR) -> ListedIds:
        return cls(lists, torch.from_numpy(lists.offsets), torch.from_numpy(lists.items))

    def __len__(self) -> int:
        return len(self.host)

    @cached_property
    def rows(self) -> Tensor:
        """The row of every element, int64 [n]."""
        numbers = torch.arange(len(self), device=self.items.device)
        if (self.host.lengths == 1).all():
            return numbers
        return numbers.repeat_interleave(self.lengths, output_size=len(self.items))

    @cached_property
    def lengths(self) -> Tensor:
        """The number of elements of every row, int64 [Q]."""
        return self.offsets.diff()

    def part(self, start: int, stop: int) -> ListedIds:
        """The rows from start to stop - 1: views, apart from the offsets."""
        if (start, stop) == (0, len(self)):
            return self
        first, last = self.host.offsets[start], self.host.offsets[stop]
        host = CSR(self.host.offsets[start : stop + 1] - first, self.host.items[first:last])
        offsets = self.offsets[start : stop + 1] - int(first)
        return ListedIds(host, offsets, self.items[int(first) : int(last)])


@dataclass(frozen=True, eq=False)
class RankingLists:
    """The targets of queries and their excluded candidates.

    excluded: distinct ids, ascending; None: there are none. among: bool [S], whether a target is
    excluded itself.
    """

    targets: ListedIds
    excluded: ListedIds | None = None
    among: Tensor | None = None

    @classmethod
    def of(cls, targets: CSR, excluded: CSR | None = None) -> RankingLists:
        """On the host; ``to_device`` moves them by one copy."""
        assert excluded is None or len(excluded) == len(targets)
        if excluded is None or not len(excluded.items):
            return cls(ListedIds.of(targets))
        excluded = excluded.distinct()
        among = torch.from_numpy(targets.listed_in(excluded))
        return cls(ListedIds.of(targets), ListedIds.of(excluded), among)

    def __len__(self) -> int:
        return len(self.targets)

    def part(self, start: int, stop: int) -> RankingLists:
        """Those of the queries from start to stop - 1."""
        targets = self.targets.part(start, stop)
        if self.excluded is None or self.among is None:
            return RankingLists(targets)
        excluded = self.excluded.part(start, stop)
        if not len(excluded.items):
            return RankingLists(targets)
        first, last = self.targets.host.offsets[[start, stop]].tolist()
        return RankingLists(targets, excluded, self.among[first:last])
