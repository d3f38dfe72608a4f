"""Item embeddings with features: an embedding of the item plus those of its feature values.

With the sparse matrix ``F`` [N, K] of :class:`~hasten.data.item_features.ItemFeatures`, the rows
are ``M E + F W``. M is 1 for items with training interactions and 0 for others, so that a cold
item is represented by its features alone. Input and output of a model read the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from hasten.data.tables import TRAIN, Dataset
from hasten.ops.table import EmbeddingTable, FixedTable, Table


class FeaturedItems(nn.Module):
    """A table whose rows are computed. count: N items; values: K."""

    codes: Tensor
    weights: Tensor
    trained: Tensor

    def __init__(self, count: int, width: int, values: int) -> None:
        super().__init__()
        self.weight = EmbeddingTable(count, width).weight
        # as large as the rows of the items, not as their own number would make them
        self.values = EmbeddingTable(values, width)
        nn.init.normal_(self.values.weight, std=float((2 / (count + width)) ** 0.5))
        self._computed: FixedTable | None = None

    def attach(self, dataset: Dataset) -> None:
        """Take F and M from the data."""
        assert dataset.item_features is not None
        codes, weights = dataset.item_features.padded(len(self))
        trained = np.zeros((len(self), 1), np.float32)
        trained[dataset.interactions.item[dataset.part == TRAIN]] = 1
        for name, values in (("codes", codes), ("weights", weights), ("trained", trained)):
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @contextmanager
    def computed_once(self) -> Iterator[None]:
        """Within this context, for scoring, the rows are those of now."""
        with torch.no_grad():
            self._computed = FixedTable(self.block(0, len(self)))
        try:
            yield
        finally:
            self._computed = None

    def rows(self, ids: Tensor) -> Tensor:
        """[..., D] the given rows (int64 ids)."""
        if self._computed is not None:
            return self._computed.rows(ids)
        flat = ids.reshape(-1)
        parts = (table.index_select(0, flat) for table in self._tables())
        return self._sum(*parts).view(*ids.shape, self.weight.shape[1])

    def block(self, start: int, stop: int) -> Tensor:
        """[stop-start, D] consecutive rows."""
        if self._computed is not None:
            return self._computed.block(start, stop)
        return self._sum(*(table[start:stop] for table in self._tables()))

    def within(self, ids: Tensor) -> tuple[Table, Tensor]:
        """As of :class:`~hasten.ops.table.EmbeddingTable`: always itself."""
        return self, ids

    def _tables(self) -> tuple[Tensor, ...]:
        return self.weight, self.trained, self.codes, self.weights

    def _sum(self, own: Tensor, trained: Tensor, codes: Tensor, weights: Tensor) -> Tensor:
        found = own * trained
        for code, weight in zip(codes.unbind(1), weights.unbind(1), strict=True):
            found = found + weight[:, None] * self.values.weight.index_select(0, code)
        return found

    def __len__(self) -> int:
        return len(self.weight)
