"""The random split of links on disk: that of :func:`~hasten.data.graph.random_splits.link_parts`.

The random number of a link depends on its number in the order of relation, low and high end. What
stays in train is found by the least number of each node and relation. The last shares of the others
are cut off at a value, which is found by counting the leading bits of the numbers and then sorting
those with the bits of the value only.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns.counter_random import bits_at
from hasten.data.graph.random_splits import KEEPS_AN_EDGE, link_key, require_parts
from hasten.data.graph.typed_links import Mask
from hasten.data.graph_store.edges import Edges
from hasten.data.graph_store.survey import HIGH, LOW, Survey
from hasten.data.splits import Shares
from hasten.data.store_folder.buckets import load
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID

Random = NDArray[np.uint64]


class LinkSplit:
    """The part of every link."""

    def __init__(self, edges: Edges, survey: Survey, shares: Shares, seed: int) -> None:
        """Raises DataError if nothing is left for a part that should not be empty."""
        self._edges, self._key, counts = edges, link_key(seed), survey.counts
        #: the number of the first link of each range and relation
        by_relation = counts.T.reshape(-1)
        first = (np.cumsum(by_relation) - by_relation).reshape(counts.T.shape).T
        self._counts, self._first = counts, first
        relations = counts.shape[1]
        most = np.uint64(2**64 - 1)
        self._least_of_node = np.full(edges.nodes, most)
        self._least_of_relation = np.full(relations, most)
        for relation, low, high, random in self._links():
            for least, at in (
                (self._least_of_node, low),
                (self._least_of_node, high),
                (self._least_of_relation, relation),
            ):
                np.minimum.at(least, at, random)
        sizes = counts.sum(0).tolist()
        wanted = [np.array([round(s * shares[p]) for s in sizes], np.int64) for p in (TEST, VALID)]
        self._cut(wanted)
        links = int(counts.sum())
        of_parts = np.zeros(len(PART_NAMES), np.int64)
        of_parts[[TEST, VALID]] = self._sizes
        require_parts(links, of_parts, shares, KEEPS_AN_EDGE)

    def parts(self, number: int, relation: Int64, low: Int64, high: Int64) -> NDArray[np.int8]:
        """int8 [L] the parts of all links of a range."""
        random = self._random(number)
        free = self._free(relation, low, high, random)
        part = np.full(len(random), TRAIN, np.int8)
        for which, place in ((VALID, 1), (TEST, 0)):
            part[free & self._any[place][relation] & (random >= self._cuts[place][relation])] = (
                which
            )
        return part

    def _random(self, number: int) -> Random:
        counts = self._counts[number]
        shift = np.repeat(self._first[number] - (np.cumsum(counts) - counts), counts)
        return bits_at(self._key, (shift + np.arange(len(shift))).astype(np.uint64))

    def _links(self) -> Iterator[tuple[Int64, NDArray[np.int32], NDArray[np.int32], Random]]:
        """Relation, low and high end, and random number of the links of each range."""
        relations = np.arange(self._counts.shape[1])
        ends = np.append(0, np.cumsum(self._counts.sum(1))).tolist()
        for number, span in enumerate(pairwise(ends)):
            low, high = (load(self._edges.folder / name, "int32", *span) for name in (LOW, HIGH))
            yield np.repeat(relations, self._counts[number]), low, high, self._random(number)

    def _free(
        self, relation: Int64, low: NDArray[np.integer], high: NDArray[np.integer], random: Random
    ) -> Mask:
        """Which links are not the first, by their random numbers, of a node or a relation."""
        free: Mask = self._least_of_relation[relation] != random
        free &= self._least_of_node[low] != random
        free &= self._least_of_node[high] != random
        return free

    def _cut(self, wanted: list[Int64]) -> None:
        """Find the least numbers that are in test and in valid. wanted: [R] sizes of both."""
        relations = self._counts.shape[1]
        bits = 12 if relations < 1024 else 8
        shift = np.uint64(64 - bits)
        bins = np.zeros(relations << bits, np.int64)
        for relation, low, high, random in self._links():
            free = self._free(relation, low, high, random)
            where = (relation[free] << bits) + (random[free] >> shift).astype(np.int64)
            bins += np.bincount(where, minlength=len(bins))
        #: [R, 2**bits] how many numbers have these leading bits or higher ones
        above = bins.reshape(relations, -1)[:, ::-1].cumsum(1)[:, ::-1]
        free_of = above[:, 0]
        tests = np.minimum(free_of, wanted[0])
        ends = (tests, tests + np.minimum(free_of - tests, wanted[1]))
        self._sizes = [int(ends[0].sum()), int((ends[1] - ends[0]).sum())]
        #: the leading bits of the value where so many of the highest numbers end
        leading = [(above >= end[:, None]).sum(1) - 1 for end in ends]
        near: list[tuple[Int64, Random]] = []
        for relation, low, high, random in self._links():
            value = (random >> shift).astype(np.int64)
            at = (value == leading[0][relation]) | (value == leading[1][relation])
            at[at] = self._free(relation[at], low[at], high[at], random[at])
            near.append((relation[at], random[at]))
        of, numbers = (np.concatenate(each) for each in zip(*near, strict=True))
        order = np.lexsort((numbers, of))
        of, numbers = of[order], numbers[order]
        self._any = [ends[0] > 0, ends[1] > 0]
        self._cuts = [np.zeros(relations, np.uint64), np.zeros(relations, np.uint64)]
        for place, end in enumerate(ends):
            for r in np.flatnonzero(end).tolist():
                mine = numbers[np.searchsorted(of, r) : np.searchsorted(of, r, "right")]
                lead = int(leading[place][r])
                higher = int(above[r, lead + 1]) if lead + 1 < 1 << bits else 0
                mine = mine[(mine >> shift).astype(np.int64) == lead]
                self._cuts[place][r] = mine[len(mine) - (int(end[r]) - higher)]
