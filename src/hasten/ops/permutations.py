"""Seeded permutations of the examples of an epoch, cached between steps."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hasten.ops.random import Stream, key, permutation

Value = TypeVar("Value")


class LastValueCache(Generic[Value]):
    """A cache of one value: the one of the last key."""

    def __init__(self) -> None:
        self._entry: tuple[Hashable, Value] | None = None

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of this key; ``make()`` computes it if another key was used last."""
        entry = self._entry  # read once: another thread may replace it
        if entry is None or entry[0] != key:
            entry = self._entry = (key, make())
        return entry[1]


def cached_permutation(
    cache: LastValueCache[Tensor], count: int, seed: int, epoch: int, *stream: int
) -> Tensor:
    """int64 [count]: the permutation of (seed, epoch, stream)."""
    base = key(seed, Stream.PERMUTATION, epoch, *stream)
    return cache.get((seed, epoch, stream), lambda: permutation(count, base))


class PermutationSampler:
    """An endless sequence of permutations of ``range(count)``, another one in each epoch.

    stream: samplers with the same seed and another stream are independent.
    """

    def __init__(self, count: int, *stream: int) -> None:
        self.count, self.stream = count, stream
        self._cache: LastValueCache[Tensor] = LastValueCache()

    def at(self, seed: int, epoch: int, positions: Tensor) -> Tensor:
        """int64 [B]: the elements at these positions (int64 [B]) of the sequence."""
        if not len(positions):
            return positions
        first, last = (int(end) // self.count for end in positions.aminmax())
        orders = [self._permutation(seed, epoch, n) for n in range(first, last + 1)]
        order = orders[0] if first == last else torch.cat(orders)
        return order.index_select(0, positions - first * self.count)

    def _permutation(self, seed: int, epoch: int, number: int) -> Tensor:
        return cached_permutation(self._cache, self.count, seed, epoch, number, *self.stream)
