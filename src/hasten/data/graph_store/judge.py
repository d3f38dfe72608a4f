"""Fourth pass: parts, duplicates, unknown entities and leaks of the edges of a range of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, matches, order_by
from hasten.config import TypedGraphOptions
from hasten.data.graph.typed_links import Mask
from hasten.data.graph_store.edges import Edges
from hasten.data.graph_store.link_ranges import LinkRange
from hasten.data.graph_store.survey import Directions, Survey
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID

#: of a row in the scratch file of codes: the edge is stored, so is its reverse beside it, its part
KEPT, REVERSED, PART = 1, 2, 2
#: parts of links that are given to the function: (range, relation, low, high) -> int8 [L]
Parts = Callable[[int, Int64, Int64, Int64], NDArray[np.int8]]


@dataclass(frozen=True, eq=False)
class Judged:
    """Of the edges of a range of nodes.

    row, code: of the edges that are stored. duplicates: how many repeat others; unknown: int64 [3]
    by part, how many have an entity or a relation of no training triple, and unknown_rows theirs.
    sizes: int64 [3] stored triples of each part. overlaps: int64 [3] distinct triples in train and
    valid, train and test, valid and test. pairs: pairs of relations (r, r') of a triple and a
    reverse of it, and their counts; of_relation: int64 [R] distinct triples. linked: of VALID and
    TEST, the triples with a reverse in train. leaks: of both, int64 [3, m]: number of a triple
    within the range, pair of relations, repetitions. used, used_relations: what stored triples
    name. links: relation, low, high end and directions (1: low to high, 2: back) of the links with
    training triples.
    """

    row: NDArray[Any]
    code: NDArray[np.uint8]
    duplicates: int
    unknown: Int64
    unknown_rows: NDArray[Any]
    sizes: Int64
    overlaps: Int64
    pairs: tuple[Int64, Int64]
    of_relation: Int64
    linked: list[int]
    leaks: list[Int64]
    used: Int64
    directions: Directions
    links: tuple[Int64, Int64, Int64, NDArray[np.uint8]]


def judge(
    number: int,
    links: LinkRange,
    edges: Edges,
    survey: Survey,
    parts: Parts | None,
    options: TypedGraphOptions,
) -> Judged:
    """What becomes of the edges of range ``number``. parts: of the links; None: the files' own."""
    both = links.forward_of & links.backward_of
    added = (survey.symmetric[links.relation] & ~links.loop & ~both)[links.link]
    times = 1 + added.astype(np.int64)
    part = links.part
    if parts is not None:
        part = parts(number, links.relation, links.low, links.high)[links.link]
    keep = np.ones(len(part), bool)
    repeats = links.repeats
    if options.duplicates != "keep":
        keep &= ~repeats
    unknown, unknown_rows = np.zeros(len(PART_NAMES), np.int64), links.row[:0]
    if parts is None:
        known = survey.entity[links.low] & survey.entity[links.high]
        known &= survey.relation[links.relation]
        lost = keep & ~known[links.link]
        unknown = np.bincount(part[lost], times[lost], len(PART_NAMES)).astype(np.int64)
        if options.unknown == "error":
            unknown_rows = np.repeat(links.row[lost], times[lost])
        if options.unknown == "drop":
            keep &= ~lost
    code = (keep * (KEPT + REVERSED * added) + (part << PART)).astype(np.uint8)
    # [part, direction, link] how many triples are stored
    stored = np.zeros((len(PART_NAMES), 2, len(links.low)), np.int64)
    backward = links.backward.astype(np.int64)
    np.add.at(stored, (part[keep], backward[keep], links.link[keep]), 1)
    turned = keep & added
    np.add.at(stored, (part[turned], 1 - backward[turned], links.link[turned]), 1)
    present = stored > 0
    forward, back = np.asarray(present.any(0))
    used = np.flatnonzero(forward | back)
    pairs, linked, leaks = _leaks(links, stored, len(edges.labels))
    trained = np.flatnonzero(present[TRAIN].any(0))
    directions = present[TRAIN, 0, trained] + 2 * present[TRAIN, 1, trained]
    of_train = (links.relation[trained], links.low[trained], links.high[trained])
    return Judged(
        links.row[keep], code[keep], int(times[repeats].sum()), unknown, unknown_rows,
        stored.sum((1, 2)),
        np.array([(present[a] & present[b]).sum() for a, b in ((0, 1), (0, 2), (1, 2))]),
        pairs,
        np.bincount(links.relation, forward.astype(np.int64) + back, len(edges.labels)).astype(
            np.int64
        ),
        linked, leaks, used,
        Directions.of(links, forward, back, len(edges.labels)),
        (*of_train, directions.astype(np.uint8)),
    )  # fmt: skip


def _leaks(
    links: LinkRange, stored: Int64, relations: int
) -> tuple[tuple[Int64, Int64], list[int], list[Int64]]:
    """The pairs of relations of triples and their reverses, and what leaks from train.

    Of a pair of nodes, the links of all relations are in one range.
    """
    order = order_by(links.low - links.low.min(initial=0), links.high)
    low, high = links.low[order], links.high[order]
    new = np.ones(len(order), bool)
    new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    pair = np.empty(len(order), np.int64)
    pair[order] = np.cumsum(new) - 1

    def reverses(queries: Mask, keys: Mask) -> tuple[Int64, Int64, Int64]:
        """Direction and link of triples (h, r, t) with a key (t, r', h), and r * relations + r'.

        queries, keys: [2, L] of both directions.
        """
        # few pairs have triples in both directions: the others are not searched
        among = np.zeros((2, int(pair.max(initial=-1)) + 1), bool)
        for direction in (0, 1):
            among[direction, pair[keys[direction]]] = True
        back = np.stack([np.where(links.loop, among[0][pair], among[1][pair]), among[0][pair]])
        way, link = np.nonzero(queries & back)
        wanted = pair[link] * 2 + np.where(links.loop[link], 0, 1 - way)
        key_way, key_link = np.nonzero(keys)
        key = pair[key_link] * 2 + key_way
        near = np.zeros(2 * among.shape[1], bool)
        near[wanted] = True
        chosen = near[key]
        key, key_link = key[chosen], key_link[chosen]
        by_key = np.argsort(key, kind="stable")
        row, place = matches(wanted, key[by_key])
        relation = links.relation[key_link[by_key[place]]]
        return way[row], link[row], links.relation[link[row]] * relations + relation

    whole = np.asarray((stored > 0).any(0))
    _, _, found = reverses(whole, whole)
    counted = np.unique(found, return_counts=True)
    linked, leaks = [], []
    for part in (VALID, TEST):
        way, link, found = reverses(stored[part] > 0, stored[TRAIN] > 0)
        triple, repetitions = way * stored.shape[2] + link, stored[part][way, link]
        first = np.ones(len(triple), bool)
        first[1:] = triple[1:] != triple[:-1]  # the pairs of a triple follow one another
        linked.append(int(repetitions[first].sum()))
        leaks.append(np.stack([np.cumsum(first), found, repetitions]))
    return counted, linked, leaks
