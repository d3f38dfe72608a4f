"""Base classes of collaborative models: pairwise training, and scores from vectors of a graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hasten.config import RunConfig, TrainingOptions
from hasten.data.tables import TRAIN, Dataset
from hasten.models.data_size import STOPPING, DataSize, stopping
from hasten.models.interface import Model
from hasten.models.search_space import Choice, Range, SearchSpace
from hasten.objectives.base import Encoded, Phase
from hasten.objectives.pairwise import InnerProductDefaults, PairwiseExamples, PairwisePhase
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.graph.spmm_rows import MAX_VISITED_ENTRIES, visits_all
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import FixedTable
from hasten.ops.transfer import to_device
from hasten.scoring import Catalog, FactorScorer, RecommenderQueries

#: metrics and split of the published experiments with users and items
PAIR_DEFAULTS: Mapping[str, Any] = {
    "data.valid_share": 0.1,
}


class CollaborativeModel(InnerProductDefaults, Model):
    """A model of users and items with pairwise training (BPR).

    A subclass defines ``pair_vectors`` and ``scorer``, and ``margins`` if its score is not an inner
    product. Its options have ``l2`` and ``sampling``.
    """

    reads = "pairs"
    sample = "library"
    defaults = {**PAIR_DEFAULTS, "lr": 1e-3, "batch_size": 2048}
    defaults_from_data: ClassVar[tuple[str, ...]] = (*STOPPING, "model.sampling")
    search: ClassVar[SearchSpace] = {
        "training.lr": Range(5e-4, 2e-2, log=True),
        "training.batch_size": Choice(1024, 2048, 4096),
        "model.width": Choice(32, 64, 128),
        "model.l2": Range(1e-6, 1e-2, log=True),
        "model.sampling": Choice("users", "interactions"),
    }

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """Early stopping; short histories: every interaction once per epoch."""
        sampling = "interactions" if size.mean_length < 30 else "users"
        return {**stopping(config, size, size.interactions), "model.sampling": sampling}

    @abstractmethod
    def pair_vectors(
        self, encoded: Encoded, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, D] vectors of users, positives and negatives, float32."""

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase over the training pairs."""
        return [self.pairwise_phase(list(self.parameters()), dataset, training)]

    def pairwise_phase(
        self, parameters: Sequence[nn.Parameter], dataset: Dataset, training: TrainingOptions
    ) -> PairwisePhase:
        """The phase over the training pairs that updates these parameters."""
        return self.phase_class(training)(
            self,
            parameters,
            dataset.histories(TRAIN),
            items=self.sizes.items,
            batch_size=training.batch_size,
            l2=self.options.l2,
            sampling=self.options.sampling,
        )

    def phase_class(self, training: TrainingOptions) -> type[PairwisePhase]:
        """The class of the phase."""
        return PairwisePhase


class NodeVectorModel(CollaborativeModel):
    """A model that computes the vectors of items and users from a graph; scores are their products.

    A subclass defines :meth:`all_vectors` and ``encode_pairs``, which returns vectors [S, D] first
    and the nodes that they belong to (int64 [S], ascending) last.
    """

    scores_need_phases = True
    #: [N + U, D] of all items, then of all users, from a checkpoint; None once the weights changed
    vectors: Tensor | None = None
    _encoded: Tensor | None = None

    @abstractmethod
    def all_vectors(self) -> Tensor:
        """[N + U, D] vectors of all items, then of all users."""

    @property
    def first_user(self) -> int:
        """The node of the first user; the items are the first nodes."""
        return self.sizes.items

    def row_graphs(self) -> Sequence[SparseGraph] | None:
        """The graphs of which :meth:`encode_pairs` reads rows; None: its shapes cannot be fixed."""
        return None

    def fix_shapes(self) -> str | None:
        graphs = self.row_graphs()
        if graphs is None:
            return super().fix_shapes()
        if not all(map(visits_all, graphs)):
            return (
                f"only the entries of its rows are read of a graph of over {MAX_VISITED_ENTRIES:,}"
            )
        self.fixed = True
        return None

    def pair_vectors(
        self, encoded: Encoded, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self.take(encoded[0], encoded[-1], pairs)

    def take(
        self, table: Tensor, nodes: Tensor, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor]:
        """[B, D] of users, positives and negatives, from the rows [S, D] of nodes [S]."""
        index = torch.searchsorted(nodes, self.pair_nodes(pairs))
        user, positive, negative = table.index_select(0, index).chunk(3)
        return user, positive, negative

    def _vectors(self) -> Tensor:
        if self._encoded is not None:
            return self._encoded
        return self.all_vectors() if self.vectors is None else self.vectors

    @contextmanager
    def encoded_once(self) -> Iterator[None]:
        self._encoded = self._vectors()
        try:
            yield
        finally:
            self._encoded = None

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Inner products of the vectors of users and items."""
        vectors = self._vectors()
        user = to_device(torch.from_numpy(queries.user), vectors.device) + self.sizes.items
        items = FixedTable(vectors[: self.sizes.items])
        return FactorScorer(vectors.index_select(0, user), Catalog(items))
