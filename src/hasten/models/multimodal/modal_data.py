"""What models with features share: their modalities, constants on the device, scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.data.modality import Modality
from hasten.data.tables import TRAIN, Dataset
from hasten.errors import ConfigurationError
from hasten.models.interface import Sizes
from hasten.objectives.pairwise import InnerProductPairs
from hasten.ops.dense.product import onednn_is_faster
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import FixedTable
from hasten.scoring import Catalogue, FactorScorer, RecommenderQueries


def chosen_modalities(wanted: Sequence[str] | None, sizes: Sizes) -> tuple[tuple[str, int], ...]:
    """(name, width) of the modalities of a model, in its order. wanted: None for all there are.

    Raises:
        ConfigurationError: one of them is not there.
    """
    there = dict(sizes.modalities)
    names = tuple(there) if wanted is None else tuple(wanted)
    missing = [name for name in names if name not in there]
    if missing or len(set(names)) < len(names):
        listed = ", ".join(there) or "none"
        raise ConfigurationError(
            f"model.modalities: no {missing[0]} features in the data (there are {listed})"
            if missing
            else f"model.modalities names one twice: {', '.join(names)}"
        )
    return tuple((name, there[name]) for name in names)


#: bytes of a page and of a line of the cache
_PAGE, _LINE = 4096, 64


class Constants:
    """Tensors that no step changes, each made at its first use, in the precision it is used in."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, name: str, like: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """The constant of that name, in what a matrix product with ``like`` is computed in."""
        whole = (name, like.device, like.dtype)
        low = (*whole, autocast_dtype(like))
        # what is made while judging must be fit for training too
        with torch.inference_mode(False), torch.no_grad():
            if whole not in self._kept:
                with torch.autocast(like.device.type, enabled=False):
                    self._kept[whole] = off_pages(make().to(like))
            if low not in self._kept:
                self._kept[low] = off_pages(self._kept[whole].to(low[-1]))
        return self._kept[low]


def off_pages(x: Tensor) -> Tensor:
    """The same table, on a CPU with rows that are not whole pages apart.

    Rows of 4,096 floats begin at the same sets of the cache, and a product that reads a column of
    panels misses it: 70 GFLOP/s instead of 78 by MKL, measured. oneDNN wants rows without gaps.
    """
    size = x.element_size()
    if x.device.type != "cpu" or x.dim() != 2 or x.stride(0) * size % _PAGE or x.stride(1) != 1:
        return x
    if onednn_is_faster() and x.dtype != torch.float64:
        return x
    wider = x.new_empty(len(x), x.shape[1] + _LINE // size)
    return wider[:, : x.shape[1]].copy_(x)


def features_of(modality: Modality) -> Tensor:
    """float32 [N, d] of a modality, on the host."""
    return torch.from_numpy(np.asarray(modality.values, np.float32))


def training_pairs(dataset: Dataset) -> CSR:
    """Each user's distinct items of the training part."""
    return CSR.of(dataset.histories(TRAIN)).distinct()


class ScoresByVectors(InnerProductPairs):
    """Scoring by products of the vectors of users and items (a part of models).

    ``all_vectors()`` gives [N + U, D] of all items, then of all users; ``vectors`` holds what a
    checkpoint gave back of it, until the weights change.
    """

    sizes: Sizes
    vectors: Tensor | None = None
    all_vectors: Callable[[], Tensor]
    _encoded: Tensor | None = None

    @contextmanager
    def encoded_once(self) -> Iterator[None]:
        """Within it, :meth:`scorer` encodes the graph at its first use only."""
        self._encoded = self.all_vectors() if self.vectors is None else self.vectors
        try:
            yield
        finally:
            self._encoded = None

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Products of the vectors of users and items."""
        found = self._encoded if self._encoded is not None else self.vectors
        vectors = self.all_vectors() if found is None else found
        user = torch.from_numpy(queries.user).to(vectors.device) + self.sizes.items
        items = FixedTable(vectors[: self.sizes.items])
        return FactorScorer(vectors.index_select(0, user), Catalogue(items))


def xavier(*shape: int) -> nn.Parameter:
    """A matrix, Xavier-normal initialised."""
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(*shape)))
