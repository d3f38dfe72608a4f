"""The edges of a range of nodes, sorted by link: relation, low and high end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, order_by
from hasten.data.graph.typed_links import Mask
from hasten.data.graph_store.edges import Edges


@dataclass(frozen=True, eq=False)
class LinkRange:
    """Edges [n], sorted by link, direction, part of their file and row, and their links [L].

    A link is an unordered pair of nodes under a relation. Edges are turned in the direction of
    their relation, and turned ones that repeat others are left out. part: of the file of each edge;
    row: its row; backward: whether its head is the high end; link: its link. relation, low, high:
    of links. forward_of, backward_of: whether a link has edges in this direction. turned, repeated:
    how many edges were turned, and how many of them left out.
    """

    row: NDArray[Any]
    part: NDArray[np.int8]
    backward: Mask
    link: Int64
    relation: Int64
    low: Int64
    high: Int64
    forward_of: Mask
    backward_of: Mask
    turned: int
    repeated: int

    @property
    def loop(self) -> Mask:
        """[L] whether the ends of a link are one node."""
        loop: Mask = self.low == self.high
        return loop

    @property
    def repeats(self) -> Mask:
        """[n] which edges repeat an earlier one of the same part."""
        same = np.zeros(len(self.row), bool)
        same[1:] = (
            (self.link[1:] == self.link[:-1])
            & (self.backward[1:] == self.backward[:-1])
            & (self.part[1:] == self.part[:-1])
        )
        return same

    @classmethod
    def of(
        cls, columns: Sequence[NDArray[Any]], edges: Edges, parts: NDArray[np.int8] | None
    ) -> LinkRange:
        """The links of some edges. columns: head, tail, kind, row; parts: of files."""
        head, tail, kind, row = columns
        low, high = np.minimum(head, tail), np.maximum(head, tail)
        turned, relation = edges.turned[kind], edges.relation[kind]
        backward = (head > tail) != (turned & (head != tail))
        given = np.zeros(len(row), np.int8) if parts is None else parts[edges.file_of(row)]
        order = order_by(relation, low - low.min(initial=0), high, backward.view(np.int8), given)
        low, high, turned, relation = low[order], high[order], turned[order], relation[order]
        backward, row, given = backward[order], row[order], given[order]
        first = np.ones(len(row), bool)
        first[1:] = (
            (low[1:] != low[:-1]) | (high[1:] != high[:-1]) | (relation[1:] != relation[:-1])
        )
        link, starts = np.cumsum(first) - 1, np.flatnonzero(first)
        count, repeated = len(starts), np.zeros(len(row), bool)
        if turned.any():
            as_stored = np.zeros(count, bool)
            as_stored[link[~turned]] = True
            repeated = turned & as_stored[link]
            keep = ~repeated
            row, given, backward, link = row[keep], given[keep], backward[keep], link[keep]
        forward_of, backward_of = np.zeros(count, bool), np.zeros(count, bool)
        forward_of[link[~backward]] = backward_of[link[backward]] = True
        return cls(
            row, given, backward, link, relation[starts],
            low[starts].astype(np.int64), high[starts].astype(np.int64), forward_of, backward_of,
            int(np.count_nonzero(turned)), int(np.count_nonzero(repeated)),
        )  # fmt: skip
