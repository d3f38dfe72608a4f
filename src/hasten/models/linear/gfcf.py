"""GF-CF: graph filters of a user's history, linear and ideal low-pass (Shen et al. 2021).

With R̃ = D_u^-½ R D_i^-½, the normalized matrix of users × items, and V its leading right singular
vectors, the scores of a history r are ``r (R̃ᵀ R̃ + alpha D_i^-½ V Vᵀ D_i^½)``. Only R̃, which is
sparse, and V are kept; no matrix of all pairs of items is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hasten.config import ModelOptions
from hasten.data.tables import Dataset
from hasten.models.interface import Sizes
from hasten.models.linear.base import LinearModel, training_pairs
from hasten.models.linear.eigenvectors import leading_eigenvectors
from hasten.models.search_space import Choice, Range
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph, product
from hasten.ops.ranking.scorer import Scorer
from hasten.scoring import RecommenderQueries


class GFCFOptions(ModelOptions):
    """Options of GF-CF."""

    name: Literal["gfcf"] = "gfcf"
    vectors: int | None = Field(
        None,
        ge=1,
        description="singular vectors of the low-pass filter; none: a fifteenth of the users or "
        "items, whichever are fewer, at most 256",
    )
    alpha: float = Field(0.3, ge=0, description="weight of the low-pass filter")


class GFCF(LinearModel):
    """The normalized interactions and their leading singular vectors."""

    name = "gfcf"
    summary = "graph filters of the interactions"
    Options = GFCFOptions
    search = {"model.vectors": Choice(32, 64, 128, 256), "model.alpha": Range(0.0, 1.0)}

    #: the training items of each user: int64 [U + 1] and int32 [E]
    offsets: Tensor
    items: Tensor
    #: [N, K] V
    vectors: Tensor

    def __init__(self, options: GFCFOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.register_buffer("offsets", torch.zeros(sizes.users + 1, dtype=torch.int64))
        self.register_buffer("items", torch.empty(0, dtype=torch.int32))
        self.register_buffer("vectors", torch.empty(sizes.items, 0))
        self._normalized: _Normalized | None = None

    def fit(self, dataset: Dataset) -> None:
        """Keep the training pairs and compute the singular vectors."""
        pairs, options, items = training_pairs(dataset), self.options, self.sizes.items
        self.offsets.copy_(torch.from_numpy(pairs.offsets))
        self.items = torch.from_numpy(pairs.items.astype(np.int32)).to(self.device)
        self._normalized = None
        matrix = self.normalized
        smaller = min(items, len(pairs))
        count = min(options.vectors or min(256, max(1, smaller // 15)), smaller)
        self.vectors = leading_eigenvectors(
            lambda x: matrix.transposed(matrix.times(x)), items, count, self.device
        )

    @property
    def normalized(self) -> _Normalized:
        """R̃, built when it is first needed."""
        if self._normalized is None:
            pairs = CSR(self.offsets.cpu().numpy(), self.items.cpu().numpy().astype(np.int64))
            self._normalized = _Normalized.of(pairs, self.sizes.items, self.device)
        return self._normalized

    def _load_from_state_dict(self, *args: Any) -> None:
        self._normalized = None
        super()._load_from_state_dict(*args)

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Both filters of the distinct items of each history."""
        matrix, history = self.normalized, CSR.of(queries.history).distinct()
        offsets, rows, items = (
            torch.from_numpy(each).to(self.device)
            for each in (history.offsets, history.rows, history.items)
        )
        x = self.vectors.new_zeros(self.sizes.items, len(queries))
        x[items, rows] = 1
        low = product(offsets.int(), items.int(), matrix.inverse[items], self.vectors)
        return _Filters(matrix, matrix.times(x), self.options.alpha * low, self.vectors)


@dataclass(frozen=True)
class _Normalized:
    """R̃ [U, N]; inverse: [N] D_i^-½, 0 for items without users."""

    graph: SparseGraph
    weights: EdgeWeights
    inverse: Tensor

    @classmethod
    def of(cls, pairs: CSR, items: int, device: torch.device) -> _Normalized:
        graph = SparseGraph.build(pairs.rows, pairs.items, len(pairs), items).to(device)
        degrees = np.maximum(np.bincount(pairs.items, minlength=items), 1) ** -0.5
        user_degrees = np.maximum(pairs.lengths, 1) ** -0.5
        values = (user_degrees[pairs.rows] * degrees[pairs.items]).astype(np.float32)
        has_pairs = np.bincount(pairs.items, minlength=items) > 0
        inverse = torch.from_numpy((degrees * has_pairs).astype(np.float32)).to(device)
        return cls(graph, graph.weigh(torch.from_numpy(values).to(device)), inverse)

    def times(self, x: Tensor) -> Tensor:
        """[U, D] R̃ x for x [N, D]."""
        return product(self.graph.offsets, self.graph.columns, self.weights.values, x)

    def transposed(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows ``start`` to ``stop`` of R̃ᵀ x, [n, D], for x [U, D]."""
        offsets = self.graph.offsets_t[start : None if stop is None else stop + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        return product(
            offsets - first,
            self.graph.columns_t[first:last],
            self.weights.transposed[first:last],
            x,
        )


@dataclass(frozen=True)
class _Filters:
    """met: [U, Q] R̃ rᵀ; low: [Q, K] alpha r D_i^-½ V."""

    matrix: _Normalized
    met: Tensor
    low: Tensor
    vectors: Tensor

    def block(self, start: int, stop: int) -> Tensor:
        inverse = self.matrix.inverse[start:stop]
        degrees = torch.where(inverse > 0, 1 / inverse, 0)
        smooth = self.low @ (self.vectors[start:stop] * degrees[:, None]).T
        return self.matrix.transposed(self.met, start, stop).T + smooth
