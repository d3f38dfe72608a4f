"""Can held-out links be told from others? AUROC and average precision of every relation.

For every held-out link (h, r, t) two others that are none: (h, r, t') and (h', r, t), with t' and
h' drawn uniformly from the nodes of the right type that are in no part known to complete the
question. A link's score is that of its tail given (h, r), for every model. Figures are those of
each relation over its links, and their mean over relations, every relation alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import KnowledgeGraph
from hasten.evaluation.query_tiles import TILE_ROWS
from hasten.evaluation.ranker import scoring
from hasten.models.interface import Model
from hasten.objectives.triple_queries import known_answers
from hasten.ops.random import Stream, integers, key
from hasten.scoring import TripleQueries

Float = NDArray[np.float64]
_TRIES = 30


@dataclass(frozen=True)
class LinkQuality:
    """relations: name -> auroc, ap and the number of links; auroc, ap: means over relations."""

    relations: dict[str, dict[str, float]]
    auroc: float
    ap: float


def link_quality(model: Model, graph: KnowledgeGraph, part: int, seed: int = 0) -> LinkQuality:
    """The figures of a part. Relations without links in it are left out."""
    judged = graph.of(part)
    others = [drawn_links(graph, part, seed, side) for side in (0, 1)]
    heads = np.concatenate([judged.head, *(o[0] for o in others)])
    relations = np.concatenate([judged.relation, *(o[1] for o in others)])
    tails = np.concatenate([judged.tail, *(o[2] for o in others)])
    scores = link_scores(model, heads, relations, tails)
    true = np.arange(len(heads)) < len(judged)
    names = graph.relations.labels.to_pylist()
    found = {}
    for relation in np.unique(judged.relation).tolist():
        mine = relations == relation
        if not (mine & ~true).any():
            continue
        found[str(names[relation])] = {
            "auroc": auroc(scores[mine], true[mine]),
            "ap": average_precision(scores[mine], true[mine]),
            "links": float((mine & true).sum()),
        }
    means = {n: float(np.mean([f[n] for f in found.values()])) for n in ("auroc", "ap")}
    return LinkQuality(found, **means)


def drawn_links(
    graph: KnowledgeGraph, part: int, seed: int, side: int
) -> tuple[Int64, Int64, Int64]:
    """(heads, relations, tails) with another tail (side 0) or head (1), one for every link.

    A link of which 30 draws were all known is left without.
    """
    types, judged = NodeTypes.of(graph), graph.of(part)
    entities, relations = len(graph.entities), len(graph.relations)
    given, turned = ((judged.head, 0), (judged.tail, relations))[side]
    queries = TripleQueries(given, judged.relation + turned)
    known = known_answers(graph.triples, relations, queries, entities)
    codes = known.rows * entities + known.items
    kind = (types.target, types.source)[side][judged.relation]
    row = np.arange(len(judged))
    drawn = np.full(len(judged), -1, np.int64)
    for attempt in range(_TRIES):
        left = row[drawn < 0]
        base = key(seed, Stream.CANDIDATES, part, side, attempt)
        size = torch.from_numpy(types.sizes[kind[left]])
        node = types.offsets[kind[left]] + integers(size, base, torch.from_numpy(left)).numpy()
        wanted = left * entities + node
        at = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
        free = codes[at] != wanted
        drawn[left[free]] = node[free]
    keep = drawn >= 0
    ends = (judged.head, drawn) if side == 0 else (drawn, judged.tail)
    return ends[0][keep], judged.relation[keep], ends[1][keep]


def link_scores(model: Model, heads: Int64, relations: Int64, tails: Int64) -> Float:
    """[n] the score of every tail given its head and relation."""
    order = np.lexsort((heads, relations))
    scores = np.empty(len(heads), np.float64)
    with scoring(model):
        for start in range(0, len(order), TILE_ROWS):
            rows = order[start : start + TILE_ROWS]
            scorer = model.scorer(TripleQueries(heads[rows], relations[rows]))
            wanted = tails[rows]
            low, high = int(wanted.min()), int(wanted.max()) + 1
            # the nodes of a type stand together, so this is seldom more than one type
            for first in range(low, high, 1 << 14):
                last = min(first + (1 << 14), high)
                inside = np.flatnonzero((wanted >= first) & (wanted < last))
                if len(inside):
                    block = scorer.block(first, last)
                    at = torch.from_numpy(inside).to(block.device)
                    place = torch.from_numpy(wanted[inside] - first).to(block.device)
                    scores[rows[inside]] = block[at, place].double().cpu().numpy()
    return scores


def auroc(scores: Float, true: NDArray[np.bool_]) -> float:
    """The share of (link, other) pairs in the right order; equal scores count half."""
    values, place = np.unique(scores, return_inverse=True)
    count = np.bincount(place.reshape(-1), minlength=len(values))
    rank = np.cumsum(count) - (count - 1) / 2  # the mean rank of equal scores
    positives = int(true.sum())
    total = float(rank[place.reshape(-1)][true].sum()) - positives * (positives + 1) / 2
    return total / (positives * (len(true) - positives))


def average_precision(scores: Float, true: NDArray[np.bool_]) -> float:
    """The mean precision at the links, best first; equal scores are one step."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    hits = np.cumsum(true[order])
    last = np.flatnonzero(np.diff(ordered, append=-np.inf))
    recalled = hits[last] / hits[-1]
    precision = hits[last] / (last + 1)
    return float((np.diff(recalled, prepend=0.0) * precision).sum())
