"""EASE: a linear autoencoder of items in closed form (Steck 2019).

The weights minimize ``‖X - X B‖² + l2 ‖B‖²`` with a diagonal of zeros: with ``P = (XᵀX + l2 I)⁻¹``
(equation 8), ``B_ij = -P_ij / P_jj``. Counts are exact in float32, so the
relative error of B is about 6e-8 times the condition number, at most 1 + (largest eigenvalue of
XᵀX) / l2. float64 would take twice the time and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hasten.config import ModelOptions
from hasten.data.tables import Dataset
from hasten.errors import ConfigurationError, HastenError, is_out_of_memory
from hasten.memory import memory_bytes
from hasten.models.interface import Sizes
from hasten.models.linear.base import LinearModel, training_pairs
from hasten.models.linear.cooccurrence import cooccurrences
from hasten.models.search_space import Range
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.spmm import product
from hasten.ops.ranking.scorer import Scorer
from hasten.scoring import RecommenderQueries

#: matrices of all pairs of items that fitting holds at a time
_MATRICES = 2


class EASEOptions(ModelOptions):
    """Options of EASE."""

    name: Literal["ease"] = "ease"
    l2: float | None = Field(
        None,
        gt=0,
        description="L2 penalty of the weights; none: 6 times the mean number of users of an item, "
        "at most 500",
    )


class EASE(LinearModel):
    """Weights from each item to all others, dense."""

    name = "ease"
    summary = "linear autoencoder of items, in closed form"
    Options = EASEOptions
    search = {"model.l2": Range(5.0, 5000.0, log=True)}

    #: [N, N] from items of a history (rows) to candidates
    weights: Tensor

    def __init__(self, options: EASEOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        needed, there = _MATRICES * 4 * sizes.items**2, memory_bytes()
        if needed > there:
            error = HastenError(
                f"ease needs {needed / 1e9:,.1f} GB of memory, {_MATRICES} matrices of all pairs "
                f"of {sizes.items:,} items, and this machine has {there / 1e9:,.1f} GB: train slim "
                "or itemknn, whose matrices are sparse, or drop rare items with data.k_core"
            )
            error.code = "memory"
            raise error
        self.register_buffer("weights", torch.empty(0, 0))

    def fit(self, dataset: Dataset) -> None:
        """Invert the matrix of co-occurrences. Raises ConfigurationError if ``l2`` is too small."""
        items = self.sizes.items
        pairs, l2 = training_pairs(dataset), self.options.l2
        if l2 is None:
            l2 = min(6 * max(1, len(pairs.items)) / items, 500.0)
        counted = np.zeros((items, items), np.float32)
        for row, column, counts in cooccurrences(pairs, items):
            counted[row, column] = counts
        gram = torch.from_numpy(counted).to(self.device)
        del counted
        gram.diagonal().add_(l2)
        try:
            gram = torch.linalg.cholesky(gram)
        except RuntimeError as error:  # torch's LinAlgError
            if is_out_of_memory(error):
                raise
            raise ConfigurationError(
                f"model.l2 {l2:g} is too small for float32: raise it"
            ) from error
        inverse = torch.cholesky_inverse(gram)
        del gram
        inverse = inverse.contiguous()  # in the order of LAPACK, each block of scores would copy it
        inverse /= -inverse.diagonal()
        self.weights = inverse.fill_diagonal_(0.0)

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Sums of rows over the distinct items of each history."""
        history = CSR.of(queries.history).distinct()
        offsets, items = (
            torch.from_numpy(each).to(self.device, torch.int32)
            for each in (history.offsets, history.items)
        )
        return _DenseScorer(offsets, items, self.weights)


@dataclass(frozen=True)
class _DenseScorer:
    offsets: Tensor
    items: Tensor
    weights: Tensor

    def block(self, start: int, stop: int) -> Tensor:
        ones = self.weights.new_ones(len(self.items))
        return product(self.offsets, self.items, ones, self.weights[:, start:stop].contiguous())
