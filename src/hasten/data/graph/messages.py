"""The links of a typed graph's training part, and the messages that pass along them, as arrays.

A link is a training edge without direction: an edge of a relation, and its reverse if the relation
is symmetric. Its messages pass both ways, by relation r and, for relations with a direction, back
by r + R.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, order_by, ragged_offsets
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import Triples

IntArray = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Links:
    """Distinct links [L], sorted by relation, head and tail.

    head, tail: int32 (int64 if the numbers are too large); bounds: int64 [R + 1], the first link of
    each relation.
    """

    head: IntArray
    tail: IntArray
    bounds: Int64

    @classmethod
    def of(cls, train: Triples, types: NodeTypes) -> Links:
        """The links of the training triples. A link of a symmetric relation has head <= tail."""
        count, relations = int(types.offsets[-1]), len(types.source)
        both = types.symmetric[train.relation]
        low = np.where(both, np.minimum(train.head, train.tail), train.head)
        high = np.where(both, np.maximum(train.head, train.tail), train.tail)
        codes = np.unique((train.relation * count + low) * count + high)
        kind, head, tail = codes // count**2, codes // count % count, codes % count
        bounds = ragged_offsets(kind, relations)
        return cls(narrow(head, count), narrow(tail, count), bounds)

    def __len__(self) -> int:
        return len(self.head)

    @property
    def kind(self) -> Int64:
        """The relation of every link."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages [E], sorted by relation, destination and source.

    source, target, link: int32 (int64 if the numbers are too large); bounds: int64 [2R + 1], the
    first message of each relation; by_target: the messages sorted by destination; offsets: int64
    [N + 1], those of each destination.
    """

    source: IntArray
    target: IntArray
    link: IntArray
    bounds: Int64
    by_target: IntArray
    offsets: Int64

    @classmethod
    def of(cls, links: Links, types: NodeTypes) -> Messages:
        """The messages along these links."""
        count, relations = int(types.offsets[-1]), len(types.source)
        kind, number = links.kind, np.arange(len(links))
        back = np.where(types.symmetric[kind], kind, kind + relations)
        # a self-loop of a symmetric relation is stored once
        proper = (links.head != links.tail) | ~types.symmetric[kind]
        source = np.concatenate([links.head, links.tail[proper]])
        relation = np.concatenate([kind, back[proper]])
        target = np.concatenate([links.tail, links.head[proper]])
        link = narrow(np.concatenate([number, number[proper]]), len(links))
        order = order_by(relation, target, source)
        source, target, link = source[order], target[order], link[order]
        by_target = narrow(np.argsort(target, kind="stable"), len(target))
        bounds, offsets = ragged_offsets(relation, 2 * relations), ragged_offsets(target, count)
        return cls(source, target, link, bounds, by_target, offsets)


def endpoints(links: Links, nodes: int) -> tuple[IntArray, Int64]:
    """The endpoints of links sorted by node, and the offsets [N + 1] of each node.

    Endpoint i is the head of link i, endpoint i + number of links its tail.
    """
    ends = np.concatenate([links.head, links.tail])
    order = narrow(np.argsort(ends, kind="stable"), len(ends))
    return order, ragged_offsets(ends, nodes)


def narrow(numbers: NDArray[Any], bound: int) -> IntArray:
    """As int32 if all are below a bound that allows it."""
    return numbers.astype(np.int32) if bound <= np.iinfo(np.int32).max else numbers


#: triples of a block
_BLOCK = 1 << 22


def blocks(triples: Triples) -> Iterator[Triples]:
    """The triples in blocks, so that what is computed from each is small."""
    for start in range(0, len(triples), _BLOCK):
        columns = (triples.head, triples.relation, triples.tail)
        yield Triples(*(np.asarray(c[start : start + _BLOCK], np.int64) for c in columns))
