"""The edges along which messages pass, and the links that a model of a typed graph learns.

A link is a training edge without direction: an edge of a relation, and its reverse if the relation
is symmetric. Its messages pass both ways, by relation r and, for relations with a direction, back
by r + R. Links that are scored in a step pass no messages in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets, ragged_positions
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import TRAIN, KnowledgeGraph
from hasten.ops.graph.edge_pairs import EdgePairs
from hasten.ops.graph.typed_edges import TypedEdges
from hasten.ops.random import bits, key

IntArray = NDArray[np.int32] | NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Hop:
    """The edges of a layer between target and source nodes (ascending), and their types.

    own: int64 [M], the index of every target among the sources; sizes, own_sizes: [T], numbers of
    sources and of targets of each type.
    """

    edges: TypedEdges | EdgePairs
    sources: Int64
    own: Tensor
    sizes: tuple[int, ...]
    own_sizes: tuple[int, ...]

    def arranged(self, device: torch.device) -> Hop:
        """The hop with its edges in the form for operations on a device, still on the host."""
        assert isinstance(self.edges, TypedEdges)
        return replace(self, edges=self.edges.arranged(device))


@dataclass(frozen=True, eq=False)
class MessageGraph:
    """Messages sorted by relation, destination and source; links sorted by relation.

    source, target, link: int32 [E] of messages (int64 if the numbers are too large); bounds: int64
    [2R + 1], the first message of each relation; by_target: int32 [E], the messages sorted by
    destination; offsets: int64 [N + 1], those of each destination. head, kind, tail: int64 [L] of
    links.
    """

    types: NodeTypes
    source: IntArray
    target: IntArray
    link: IntArray
    bounds: Int64
    by_target: IntArray
    offsets: Int64
    head: Int64
    kind: Int64
    tail: Int64

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> MessageGraph:
        """The graph of the training part."""
        types, train = NodeTypes.of(graph), graph.of(TRAIN)
        count, relations = int(types.offsets[-1]), len(graph.relations)
        both = types.symmetric[train.relation]
        low = np.where(both, np.minimum(train.head, train.tail), train.head)
        high = np.where(both, np.maximum(train.head, train.tail), train.tail)
        codes = np.unique((train.relation * count + low) * count + high)
        kind, head, tail = codes // count**2, codes // count % count, codes % count
        number = np.arange(len(codes))
        back = np.where(types.symmetric[kind], kind, kind + relations)
        proper = (head != tail) | ~types.symmetric[
            kind
        ]  # a self-loop of a symmetric relation is stored once
        source = np.concatenate([head, tail[proper]])
        relation = np.concatenate([kind, back[proper]])
        target = np.concatenate([tail, head[proper]])
        link = np.concatenate([number, number[proper]])
        order = np.lexsort((source, target, relation))
        source, target = (_narrow(ends[order], count) for ends in (source, target))
        link = _narrow(link[order], len(codes))
        by_target = _narrow(np.argsort(target, kind="stable"), len(target))
        bounds, offsets = ragged_offsets(relation, 2 * relations), ragged_offsets(target, count)
        return cls(types, source, target, link, bounds, by_target, offsets, head, kind, tail)

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    def whole(self) -> TypedEdges:
        """All messages."""
        source, target = (each.astype(np.int64) for each in (self.source, self.target))
        relation = np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))
        return TypedEdges.build(source, relation, target, (self.nodes,) * 2, in_order=True)

    def relation_of(self, messages: IntArray) -> Int64:
        """The relation of each of these messages."""
        return np.searchsorted(self.bounds, messages, "right") - 1

    def sizes(self, nodes: Int64) -> tuple[int, ...]:
        """The number of these nodes (ascending) of each type."""
        return tuple(np.diff(np.searchsorted(nodes, self.types.offsets)).tolist())

    def hop(
        self,
        targets: Int64,
        scored: NDArray[np.bool_] | None = None,
        fan_out: int | None = None,
        draw: int = 0,
        *,
        everything: bool = False,
    ) -> Hop:
        """The messages into these nodes (ascending).

        scored: bool [L], links that pass no messages. fan_out: largest number of messages per
        relation and node. The sample depends only on the key ``draw`` and the message, not on the
        other targets. everything: the sources are all nodes.
        """
        chosen = self._into(targets, scored, fan_out, draw)
        source, target = self.source[chosen], self.target[chosen]
        sources = np.arange(self.nodes) if everything else _union(source, targets, self.nodes)
        edges = TypedEdges.build(
            np.searchsorted(sources, source),
            self.relation_of(chosen),
            np.searchsorted(targets, target),
            (len(targets), len(sources)),
            in_order=True,
        )
        own = torch.from_numpy(np.searchsorted(sources, targets))
        return Hop(edges, sources, own, self.sizes(sources), self.sizes(targets))

    def _into(
        self, targets: Int64, scored: NDArray[np.bool_] | None, fan_out: int | None, draw: int
    ) -> IntArray:
        """The messages of :meth:`hop`, ascending; sampled relation by relation, to save memory."""
        chosen = self.by_target[ragged_positions(self.offsets, targets)[0]]
        if scored is not None:
            chosen = chosen[~scored[self.link[chosen]]]
        chosen.sort()
        if fan_out is None:
            return chosen
        cuts = np.searchsorted(chosen, self.bounds).tolist()
        parts = [chosen[first:last] for first, last in pairwise(cuts)]
        return np.concatenate([part[self._first(part, fan_out, draw)] for part in parts])

    def _first(self, chosen: IntArray, fan_out: int, draw: int) -> NDArray[np.bool_]:
        """Which of a relation's messages (sorted by destination) are sampled."""
        target = self.target[chosen]
        begin = np.flatnonzero(np.diff(target, prepend=-1))
        lengths = np.diff(np.append(begin, len(target)))
        if not len(target) or lengths.max() <= fan_out:
            return np.ones(len(target), bool)
        chance = bits(key(draw), torch.from_numpy(chosen.astype(np.int64))).numpy()
        order = np.lexsort((chance, target))
        rank = np.arange(len(target)) - np.repeat(begin, lengths)
        keep = np.zeros(len(target), bool)
        keep[order[rank < fan_out]] = True
        return keep

    def hops(
        self,
        wanted: Int64,
        layers: int,
        scored: NDArray[np.bool_] | None,
        fan_out: int | None,
        draw: int,
    ) -> Sequence[Hop]:
        """The hops of all layers, first layer first, that compute the wanted nodes."""
        found: list[Hop] = []
        targets = wanted
        for layer in reversed(range(layers)):
            hop = self.hop(targets, scored, fan_out, key(draw, layer))
            found.append(hop)
            targets = hop.sources
        return found[::-1]


def _narrow(numbers: Int64, bound: int) -> IntArray:
    return numbers.astype(np.int32) if bound <= np.iinfo(np.int32).max else numbers


def _union(some: IntArray, others: Int64, count: int) -> Int64:
    """The distinct nodes of both arrays, ascending."""
    seen = np.zeros(count, bool)
    seen[some] = True
    seen[others] = True
    return np.flatnonzero(seen)
