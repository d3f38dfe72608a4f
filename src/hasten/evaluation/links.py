"""Classification of links in typed graphs: AUROC and average precision against sampled negatives.

Each held-out link (h, r, t) has two negatives, (h, r, t') and (h', r, t). t' and h' are sampled
uniformly from the nodes of the right type without a known link in any part. The score of a link is
the score of its tail given (h, r). Metrics are computed by relation and averaged over relations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes
from hasten.data.graph_store.mapped import triple_blocks
from hasten.data.tables import KnowledgeGraph
from hasten.evaluation.query_tiles import TILE_ROWS
from hasten.evaluation.ranker import scoring
from hasten.models.interface import Model
from hasten.objectives.triple_queries import known_answers
from hasten.ops.random import Stream, integers, key
from hasten.scoring import TripleQueries

Float = NDArray[np.float64]
_ATTEMPTS = 30


@dataclass(frozen=True)
class LinkQuality:
    """relations: name -> auroc, ap and the number of links; auroc, ap: means over relations."""

    relations: dict[str, dict[str, float]]
    auroc: float
    ap: float


def link_quality(model: Model, graph: KnowledgeGraph, part: int, seed: int = 0) -> LinkQuality:
    """The metrics of a part. Relations without links in it are omitted."""
    held_out = graph.of(part)
    negatives = [negative_links(graph, part, seed, side) for side in (0, 1)]
    heads = np.concatenate([held_out.head, *(o[0] for o in negatives)])
    relations = np.concatenate([held_out.relation, *(o[1] for o in negatives)])
    tails = np.concatenate([held_out.tail, *(o[2] for o in negatives)])
    scores = link_scores(model, heads, relations, tails)
    true = np.arange(len(heads)) < len(held_out)
    names = graph.relations.labels.to_pylist()
    by_relation = {}
    for relation in np.unique(held_out.relation).tolist():
        of_relation = relations == relation
        if not (of_relation & ~true).any():
            continue
        by_relation[str(names[relation])] = {
            "auroc": auroc(scores[of_relation], true[of_relation]),
            "ap": average_precision(scores[of_relation], true[of_relation]),
            "links": float((of_relation & true).sum()),
        }
    means = {n: float(np.mean([f[n] for f in by_relation.values()])) for n in ("auroc", "ap")}
    return LinkQuality(by_relation, **means)


def negative_links(
    graph: KnowledgeGraph, part: int, seed: int, side: int
) -> tuple[Int64, Int64, Int64]:
    """(heads, relations, tails) with a sampled tail (side 0) or head (1) for each link.

    A link has no negative if 30 samples are all known links.
    """
    types, held_out = NodeTypes.of(graph), graph.of(part)
    entities, relations = len(graph.entities), len(graph.relations)
    known_ends, turned = ((held_out.head, 0), (held_out.tail, relations))[side]
    queries = TripleQueries(known_ends, held_out.relation + turned)
    known = known_answers(triple_blocks(graph), relations, queries, entities)
    codes = known.rows * entities + known.items
    kind = (types.target, types.source)[side][held_out.relation]
    row = np.arange(len(held_out))
    sampled = np.full(len(held_out), -1, np.int64)
    for attempt in range(_ATTEMPTS):
        left = row[sampled < 0]
        base = key(seed, Stream.CANDIDATES, part, side, attempt)
        size = torch.from_numpy(types.sizes[kind[left]])
        node = types.offsets[kind[left]] + integers(size, base, torch.from_numpy(left)).numpy()
        pair_codes = left * entities + node
        positions = np.minimum(np.searchsorted(codes, pair_codes), len(codes) - 1)
        free = codes[positions] != pair_codes
        sampled[left[free]] = node[free]
    keep = sampled >= 0
    ends = (held_out.head, sampled) if side == 0 else (sampled, held_out.tail)
    return ends[0][keep], held_out.relation[keep], ends[1][keep]


def link_scores(model: Model, heads: Int64, relations: Int64, tails: Int64) -> Float:
    """[n] scores of the tails given heads and relations."""
    order = np.lexsort((heads, relations))
    scores = np.empty(len(heads), np.float64)
    with scoring(model):
        for start in range(0, len(order), TILE_ROWS):
            rows = order[start : start + TILE_ROWS]
            scorer = model.scorer(TripleQueries(heads[rows], relations[rows]))
            chunk_tails = tails[rows]
            low, high = int(chunk_tails.min()), int(chunk_tails.max()) + 1
            # nodes of a type have consecutive ids: this range is rarely more than one type
            for first in range(low, high, 1 << 14):
                last = min(first + (1 << 14), high)
                inside = np.flatnonzero((chunk_tails >= first) & (chunk_tails < last))
                if len(inside):
                    block = scorer.block(first, last)
                    block_rows = torch.from_numpy(inside).to(block.device)
                    column = torch.from_numpy(chunk_tails[inside] - first).to(block.device)
                    scores[rows[inside]] = block[block_rows, column].double().cpu().numpy()
    return scores


def auroc(scores: Float, true: NDArray[np.bool_]) -> float:
    """The share of (link, negative) pairs in the right order; ties count half."""
    values, inverse = np.unique(scores, return_inverse=True)
    count = np.bincount(inverse.reshape(-1), minlength=len(values))
    rank = np.cumsum(count) - (count - 1) / 2  # the mean rank of equal scores
    positives = int(true.sum())
    total = float(rank[inverse.reshape(-1)][true].sum()) - positives * (positives + 1) / 2
    return total / (positives * (len(true) - positives))


def average_precision(scores: Float, true: NDArray[np.bool_]) -> float:
    """The mean precision at the links, best first; ties are one threshold."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    hits = np.cumsum(true[order])
    last = np.flatnonzero(np.diff(ordered, append=-np.inf))
    recalled = hits[last] / hits[-1]
    precision = hits[last] / (last + 1)
    return float((np.diff(recalled, prepend=0.0) * precision).sum())
