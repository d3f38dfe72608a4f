"""Base classes of models with item-to-item weights, which score items by a user's history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets, ragged_positions, ranges
from hasten.data.tables import TRAIN, Dataset
from hasten.models.collaborative.base import PAIR_DEFAULTS
from hasten.models.interface import Model, Sizes
from hasten.models.supports import FITTED
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.scorer import Scorer
from hasten.scoring import RecommenderQueries

#: weights that are added to scores at a time
_ADDED = 1 << 22


class LinearModel(Model):
    """A model that is fitted to the distinct training pairs; all histories are sets of items.

    The shapes of its buffers depend on the data; a checkpoint gives them when it is loaded.
    """

    reads = "pairs"
    sample = "library"
    defaults = PAIR_DEFAULTS
    supports = FITTED
    scores_new_users = True

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *rest: Any) -> None:
        for name, buffer in list(self.named_buffers(recurse=False)):
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != buffer.shape:
                setattr(self, name, buffer.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def training_pairs(dataset: Dataset) -> CSR:
    """The distinct training items of each user."""
    return CSR.of(dataset.histories(TRAIN)).distinct()


class SparseItemModel(LinearModel):
    """A model whose score of an item is the sum of its weights from the items of the history.

    targets: int32 [E], the items with a weight from each history item, which begin at ``offsets``
    (int64 [N + 1]); weights: float32 [E].
    """

    offsets: Tensor
    targets: Tensor
    weights: Tensor

    def __init__(self, options: Any, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.register_buffer("offsets", torch.zeros(sizes.items + 1, dtype=torch.int64))
        self.register_buffer("targets", torch.empty(0, dtype=torch.int32))
        self.register_buffer("weights", torch.empty(0))

    def keep(self, source: Int64, target: Int64, weight: Tensor) -> None:
        """Store the weights [E] from items of a history to candidates."""
        order = np.lexsort((target, source))
        self.offsets.copy_(torch.from_numpy(ragged_offsets(source, self.sizes.items)))
        self.targets = torch.from_numpy(target[order].astype(np.int32)).to(self.device)
        self.weights = weight.cpu()[torch.from_numpy(order)].to(self.device)

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Sums over the distinct items of each history."""
        history = CSR.of(queries.history).distinct()
        return _SparseScorer(history, self.offsets.cpu().numpy(), self.targets, self.weights)


@dataclass(frozen=True)
class _SparseScorer:
    history: CSR
    offsets: Int64
    targets: Tensor
    weights: Tensor

    def block(self, start: int, stop: int) -> Tensor:
        width, items, rows = stop - start, self.history.items, self.history.rows
        scores = self.weights.new_zeros(len(self.history) * width)
        for first, last in ranges(self.offsets[items + 1] - self.offsets[items], _ADDED):
            entries, new = ragged_positions(self.offsets, items[first:last])
            row = np.repeat(rows[first:last] * width - start, np.diff(new))
            entry, place = (torch.from_numpy(each).to(scores.device) for each in (entries, row))
            target, weight = self.targets[entry], self.weights[entry]
            place += target
            if width < len(self.offsets) - 1:
                inside = (target >= start) & (target < stop)
                place, weight = place[inside], weight[inside]
            scores.index_add_(0, place, weight)
        return scores.view(-1, width)
