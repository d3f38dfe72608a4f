"""The queries with which an export is compared with hasten, and hasten's answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, ragged_positions
from hasten.data.event_features import EventFeatures
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, KnowledgeGraph
from hasten.errors import UsageError
from hasten.evaluation.top_k import batch_top_k
from hasten.inference.recommend import queries_of
from hasten.ops.graph.csr import CSR
from hasten.scoring import AnyQueries, RecommenderQueries, TripleQueries

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

#: most queries of a comparison
QUERIES = 1000
#: indices [n, k], best first, and float32 scores of some rows of a sample
Found = tuple[Int64, NDArray[np.float32]]
Search = Callable[[Int64], Found]


@dataclass(frozen=True, eq=False)
class Sample:
    """Users with a history, whose items are excluded, or incomplete triples.

    count: the candidates, items or entities; k: how many are compared. features: of the events of
    the histories, if the data have any.
    """

    queries: AnyQueries
    count: int
    k: int
    features: EventFeatures | None = None

    @classmethod
    def of(cls, loaded: LoadedRun, k: int) -> Sample:
        """Evenly spaced users, or triples of the data in both directions."""
        dataset = loaded.dataset
        queries: AnyQueries
        if isinstance(dataset, KnowledgeGraph):
            facts, relations = dataset.triples, len(dataset.relations)
            rows = spaced(np.arange(len(facts)), QUERIES // 2)
            tails = TripleQueries(facts.head[rows], facts.relation[rows])
            entity = np.concatenate([tails.entity, facts.tail[rows]])
            queries = TripleQueries(entity, np.append(tails.relation, tails.relation + relations))
            return cls(queries, len(dataset.entities), min(k, len(dataset.entities)))
        assert isinstance(dataset, Dataset)
        whole, features = dataset.histories(TRAIN, VALID, TEST), dataset.event_features
        rows = spaced(np.flatnonzero(whole.lengths > 0), QUERIES)
        if not len(rows):
            raise UsageError(f"{loaded.path}: no user has a history: there is nothing to compare")
        queries = queries_of(dataset, rows, "test")
        if features is not None:
            features = features.take(ragged_positions(whole.offsets, rows)[0])
        return cls(queries, len(dataset.items), min(k, len(dataset.items)), features)

    @property
    def users(self) -> RecommenderQueries:
        assert isinstance(self.queries, RecommenderQueries)
        return self.queries

    def hasten(self, loaded: LoadedRun) -> Search:
        """The search of hasten itself; call it within ``scoring``."""

        def search(rows: Int64) -> Found:
            queries = self.queries.take(rows)
            seen = CSR.of(queries.history) if isinstance(queries, RecommenderQueries) else None
            ids, scores = batch_top_k(loaded.model, queries, self.count, self.k, seen)
            return ids.cpu().numpy(), scores.cpu().numpy()

        return search

    def histories(self, rows: Int64, longest: int | None = None) -> tuple[Int64, Int64]:
        """Items and times [n, L] of the last ``longest`` interactions, padded by -1 at the end."""
        history = self.users.history
        items = self._last(history.items, rows, longest)
        if history.times is None:
            return items, np.tile(np.arange(1, items.shape[1] + 1), (len(rows), 1))
        return items, self._last(history.times, rows, longest)

    def described(self, rows: Int64, longest: int | None = None) -> dict[str, NDArray[Any]]:
        """The features of these interactions, as the inputs of a program (int64, float64)."""
        assert self.features is not None
        found: dict[str, list[NDArray[Any]]] = {"categories": [], "numbers": []}
        for column, cells in zip(self.features.columns, self.features.cells, strict=True):
            name, values = "numbers", cells
            if column.kind == "categorical":
                name, values = "categories", cells.astype(np.int64) + 1
            found[name].append(self._last(values, rows, longest))
        return {name: np.stack(each, axis=2) for name, each in found.items() if each}

    def _last(self, values: NDArray[Any], rows: Int64, longest: int | None) -> NDArray[Any]:
        """[n, L] the last ``longest`` values of these users, padded by -1 at the end."""
        history = self.users.history
        lengths = np.minimum(history.lengths[rows], longest or history.lengths[rows].max())
        found = np.full((len(rows), int(lengths.max())), -1, values.dtype)
        for row, (end, length) in enumerate(zip(history.ends[rows], lengths, strict=True)):
            found[row, :length] = values[end - length : end]
        return found


def best(scores: NDArray[np.float32], k: int) -> Found:
    """The k best columns of each row; equal scores by lower index."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(scores, order, 1)


def spaced(rows: Int64, count: int) -> Int64:
    """At most ``count`` of the rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64)]
