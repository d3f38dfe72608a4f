"""The best k candidates of each query, shared by recommendation and link prediction."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64
from hasten.evaluation.candidate_ranges import Ranges, RangeScorer
from hasten.evaluation.query_tiles import make_tiles
from hasten.evaluation.ranker import scoring
from hasten.models.interface import Model
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.ranking.topk_all import topk_all
from hasten.scoring import RecommenderQueries, TripleQueries


def top_k(
    model: Model,
    queries: RecommenderQueries | TripleQueries,
    candidates: int,
    k: int,
    excluded: CSR | None = None,
    allowed: Int64 | None = None,
    ranges: tuple[Int64, Int64] | None = None,
) -> tuple[Int64, Int64, Int64, NDArray[np.float32]]:
    """Query, candidate, place (from 0) and score of the best candidates, sorted by query and place.

    excluded: candidates that a query must not get; allowed: the only ones that any query may get;
    ranges: the first candidate of each query and the end of its range.
    """
    parts = []
    with scoring(model):
        for tile in make_tiles(queries.lengths):
            hidden = None if excluded is None else excluded.take(tile.padded_rows)
            bounds = (
                None
                if ranges is None
                else (ranges[0][tile.padded_rows], ranges[1][tile.padded_rows])
            )
            ids, scores = batch_top_k(
                model, queries.take(tile.padded_rows), candidates, k, hidden, allowed, bounds
            )
            ids, scores = ids[: tile.count].cpu(), scores[: tile.count].cpu()
            row, place = (indices.numpy() for indices in torch.nonzero(ids >= 0, as_tuple=True))
            parts.append(
                (tile.rows[row], ids.numpy()[row, place], place, scores.numpy()[row, place])
            )
    query, candidate, place, score = (np.concatenate(c) for c in zip(*parts, strict=True))
    order = np.lexsort((place, query))
    return query[order], candidate[order], place[order], score[order]


def batch_top_k(
    model: Model,
    queries: RecommenderQueries | TripleQueries,
    candidates: int,
    k: int,
    excluded: CSR | None = None,
    allowed: Int64 | None = None,
    ranges: tuple[Int64, Int64] | None = None,
) -> tuple[Tensor, Tensor]:
    """Ids int64 [Q, k] and scores [Q, k] of one batch, best first; -1 where there are fewer.

    Call it within :func:`scoring`. The last bits of scores depend on the size of the batch;
    :func:`top_k` computes in batches of a fixed size.
    """
    scorer: Scorer = model.scorer(queries)
    if ranges is not None:
        scorer = RangeScorer(scorer, Ranges.of(*ranges))
    return topk_all(scorer, len(queries), candidates, min(k, candidates), excluded, allowed)
