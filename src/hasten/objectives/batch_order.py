"""The orders in which examples come: permutations from the seed, not drawn anew for every step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hasten.ops.random import Stream, key, permutation

Found = TypeVar("Found")


class Latest(Generic[Found]):
    """One value at a time, made when a name is asked for that is not the last one."""

    def __init__(self) -> None:
        self._kept: tuple[Hashable, Found] | None = None

    def of(self, name: Hashable, make: Callable[[], Found]) -> Found:
        """The value of this name: the one that is kept, or made and kept in its place."""
        if self._kept is None or self._kept[0] != name:
            self._kept = (name, make())
        return self._kept[1]


class Turns:
    """The numbers below a count in permutations, one after the other, in each epoch anew.

    apart: keeps the permutations apart from those of other turns with the same seed.
    """

    def __init__(self, count: int, *apart: int) -> None:
        self.count, self.apart = count, apart
        self._order: Latest[Tensor] = Latest()

    def at(self, seed: int, epoch: int, ids: Tensor) -> Tensor:
        """int64 [B] what stands at these places of the permutations laid end to end."""
        if not len(ids):
            return ids
        first, last = (int(end) // self.count for end in ids.aminmax())
        if first == last:  # nearly always: a batch is small beside a permutation
            return self._of(seed, epoch, first)[ids - first * self.count]
        rounds = torch.div(ids, self.count, rounding_mode="floor")
        found = torch.empty_like(ids)
        for number in range(first, last + 1):
            mine = rounds == number
            found[mine] = self._of(seed, epoch, number)[ids[mine] - number * self.count]
        return found

    def _of(self, seed: int, epoch: int, number: int) -> Tensor:
        base = key(seed, Stream.PERMUTATION, epoch, number, *self.apart)
        return self._order.of((seed, epoch, number), lambda: permutation(self.count, base))
