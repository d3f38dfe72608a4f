"""Queries, the catalog of candidates, and scorers.

A model scores queries against the catalog, all items or entities, block by block, so no [Q, N]
matrix is ever held. If the score is ``q · table[j] + bias[j]`` the scorer is a
:class:`FactorScorer`; other models define their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.tables import Histories
from hasten.ops.dense.product import product, product_plus
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.sharded_table import ShardedTable
from hasten.ops.table import Table


@dataclass(frozen=True)
class Catalog:
    """The candidates: all items or entities, as a table [N, D] with an optional bias [N]."""

    table: Table
    bias: Tensor | None = None

    def biases(self, start: int, stop: int) -> Tensor | None:
        """[stop - start] those of consecutive candidates."""
        if self.bias is None:
            return None
        table, first = self.table, 0
        if isinstance(table, ShardedTable) and len(self.bias) < len(table):
            first = table.shard.first  # they are sharded like the table
        return self.bias[start - first : stop - first]


#: the earlier name, for models outside of this package
Catalogue = Catalog


@dataclass(frozen=True)
class FactorScorer:
    """Scores ``vectors @ table.T + bias``, for models whose score factorizes.

    vectors: [Q, D]. query_bias: [Q], added to all scores of a query.
    """

    vectors: Tensor
    catalog: Catalog
    query_bias: Tensor | None = None

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop - start] scores of the candidates start to stop."""
        rows = self.catalog.table.block(start, stop)
        return self._scores(rows, self.catalog.biases(start, stop))

    @property
    def device(self) -> torch.device:
        return self.vectors.device

    def listed(self, ids: Tensor) -> Tensor:
        """[Q, n] scores of the candidates ids [n], the same for all queries."""
        bias = self.catalog.bias
        return self._scores(self.catalog.table.rows(ids), None if bias is None else bias[ids])

    def pairs(self, ids: Tensor) -> Tensor:
        """[Q, K] scores of the candidates ids [Q, K], different ones for each query."""
        rows, bias = self.catalog.table.rows(ids), self.catalog.bias
        scores = (rows * self.vectors[:, None]).sum(2)
        if bias is not None:
            return scores + bias[ids]
        return scores if self.query_bias is None else scores + self.query_bias[:, None]

    def _scores(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            return product_plus(self.vectors, rows.T, bias)
        scores = product(self.vectors, rows.T)
        return scores if self.query_bias is None else scores + self.query_bias[:, None]


@dataclass(frozen=True, kw_only=True)
class SelfScorer(FactorScorer):
    """A FactorScorer that adds ``self_score`` [Q] to the score of a query with its own ``node``.

    node: int64 [Q].
    """

    node: Tensor
    self_score: Tensor

    def block(self, start: int, stop: int) -> Tensor:
        column = self.node - start
        inside = (column >= 0) & (column < stop - start)
        column = column.clamp(0, max(0, stop - start - 1))
        scores = super().block(start, stop)
        added = torch.where(inside, self.self_score, 0.0).to(scores.dtype)
        return scores.scatter_add_(1, column[:, None], added[:, None])

    def listed(self, ids: Tensor) -> Tensor:
        return super().listed(ids) + self._added(ids[None])

    def pairs(self, ids: Tensor) -> Tensor:
        return super().pairs(ids) + self._added(ids)

    def _added(self, ids: Tensor) -> Tensor:
        return self.self_score[:, None] * (ids == self.node[:, None])


class PairScorer:
    """Scores of any score function.

    queries: int64 [Q] each, such as users, or entities and relations. score: takes the queries and
    int64 [Q, K] candidates, and returns [Q, K] scores.
    """

    def __init__(self, score: Callable[..., Tensor], *queries: Tensor) -> None:
        self.score, self.queries = score, queries

    def block(self, start: int, stop: int) -> Tensor:
        first = self.queries[0]
        candidates = torch.arange(start, stop, device=first.device)
        return self.score(*self.queries, candidates.expand(len(first), -1))


def with_self_score(
    scorer: FactorScorer | PairScorer, node: Tensor, self_score: Tensor | None
) -> Scorer:
    """The scorer with ``self_score`` [Q] added to the score of a query with its own ``node`` [Q].

    node: int64. self_score: None adds nothing.
    """
    if self_score is None:
        return scorer
    if isinstance(scorer, FactorScorer):
        vectors, catalog, bias = scorer.vectors, scorer.catalog, scorer.query_bias
        return SelfScorer(vectors, catalog, bias, node=node, self_score=self_score)
    added, own, plain = self_score[:, None], node[:, None], scorer.score

    def score(*queries_and_candidates: Tensor) -> Tensor:
        return plain(*queries_and_candidates) + added * (queries_and_candidates[-1] == own)

    return PairScorer(score, *scorer.queries)


@dataclass(frozen=True)
class RecommenderQueries:
    """Users and their histories. user: int64 [Q], -1 for a new user."""

    user: Int64
    history: Histories

    def __len__(self) -> int:
        return len(self.user)

    @property
    def lengths(self) -> Int64:
        """The lengths of the histories, by which queries are batched."""
        return self.history.lengths

    def take(self, rows: Int64) -> RecommenderQueries:
        return RecommenderQueries(self.user[rows], self.history.take(rows))


@dataclass(frozen=True)
class TripleQueries:
    """Incomplete triples (entity, relation, ?), whose tail is searched.

    entity, relation: int64 [Q]. With R relations, r + R is the reciprocal of r: the query for the
    heads of (?, r, t) is (t, r + R, ?).
    """

    entity: Int64
    relation: Int64

    def __len__(self) -> int:
        return len(self.entity)

    @property
    def lengths(self) -> Int64:
        """Zero: triples have no histories, by whose length queries could be batched."""
        return np.zeros(len(self), np.int64)

    def take(self, rows: Int64) -> TripleQueries:
        return TripleQueries(self.entity[rows], self.relation[rows])


AnyQueries = RecommenderQueries | TripleQueries
