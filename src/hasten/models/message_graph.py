"""Along which edges messages pass, and the links that a model of a typed graph learns.

A link is a training edge without direction: an edge of a relation, and its reverse where the
relation is symmetric. Its messages pass both ways, by relation r and, for relations with a
direction, back by r + R. Links that are scored in a step pass none in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.data.graph import KnowledgeGraph
from hasten.data.node_types import NodeTypes
from hasten.data.tables import TRAIN, Int64, ragged_positions
from hasten.ops.edge_attention import TypedEdges
from hasten.ops.random import bits, key


@dataclass(frozen=True, eq=False)
class Hop:
    """A layer's edges between some nodes: targets and sources, ascending, and their types.

    own: int64 [M], the place of every target among the sources; sizes, own_sizes: [T].
    """

    edges: TypedEdges
    sources: Int64
    own: Int64
    sizes: tuple[int, ...]
    own_sizes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class MessageGraph:
    """Messages by relation, destination and source; links by relation.

    source, relation, target, link: int64 [E] of messages; by_target: int64 [E], the messages by
    destination; offsets: int64 [N + 1], those of each. head, kind, tail: int64 [L] of links.
    """

    types: NodeTypes
    source: Int64
    relation: Int64
    target: Int64
    link: Int64
    by_target: Int64
    offsets: Int64
    head: Int64
    kind: Int64
    tail: Int64

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> MessageGraph:
        """That of the training part."""
        types, train = NodeTypes.of(graph), graph.of(TRAIN)
        count, relations = int(types.offsets[-1]), len(graph.relations)
        both = types.symmetric[train.relation]
        low = np.where(both, np.minimum(train.head, train.tail), train.head)
        high = np.where(both, np.maximum(train.head, train.tail), train.tail)
        codes = np.unique((train.relation * count + low) * count + high)
        kind, head, tail = codes // count**2, codes // count % count, codes % count
        number = np.arange(len(codes))
        back = np.where(types.symmetric[kind], kind, kind + relations)
        proper = (head != tail) | ~types.symmetric[kind]  # a loop of a symmetric relation is one
        source = np.concatenate([head, tail[proper]])
        relation = np.concatenate([kind, back[proper]])
        target = np.concatenate([tail, head[proper]])
        link = np.concatenate([number, number[proper]])
        order = np.lexsort((source, target, relation))
        source, relation, target, link = (c[order] for c in (source, relation, target, link))
        by_target = np.argsort(target, kind="stable")
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(target, minlength=count), out=offsets[1:])
        return cls(types, source, relation, target, link, by_target, offsets, head, kind, tail)

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    def whole(self) -> TypedEdges:
        """All messages."""
        shape = (self.nodes, self.nodes)
        return TypedEdges.build(self.source, self.relation, self.target, shape, in_order=True)

    def sizes(self, nodes: Int64) -> tuple[int, ...]:
        """How many of the nodes (ascending) are of each type."""
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
        """The messages into some nodes (ascending).

        scored: bool [L], links without messages. fan_out: at most so many messages of a relation
        into a node, drawn by the key ``draw`` and the message alone, so that it does not matter
        what else is asked for. everything: the sources are all nodes.
        """
        places, _ = ragged_positions(self.offsets, targets)
        chosen = self.by_target[places]
        if scored is not None:
            chosen = chosen[~scored[self.link[chosen]]]
        chosen = np.sort(chosen)
        if fan_out is not None:
            chosen = chosen[self._first(chosen, fan_out, draw)]
        source, target = self.source[chosen], self.target[chosen]
        sources = np.arange(self.nodes) if everything else _union(source, targets, self.nodes)
        edges = TypedEdges.build(
            np.searchsorted(sources, source),
            self.relation[chosen],
            np.searchsorted(targets, target),
            (len(targets), len(sources)),
            in_order=True,
        )
        own = np.searchsorted(sources, targets)
        return Hop(edges, sources, own, self.sizes(sources), self.sizes(targets))

    def _first(self, chosen: Int64, fan_out: int, draw: int) -> NDArray[np.bool_]:
        """Which of the messages (by relation and destination) are among the drawn."""
        group = self.relation[chosen] * self.nodes + self.target[chosen]
        begin = np.flatnonzero(np.diff(group, prepend=-1))
        lengths = np.diff(np.append(begin, len(group)))
        if not len(group) or lengths.max() <= fan_out:
            return np.ones(len(group), bool)
        chance = bits(key(draw), torch.from_numpy(chosen)).numpy()
        order = np.lexsort((chance, group))
        rank = np.arange(len(group)) - np.repeat(begin, lengths)
        keep = np.zeros(len(group), bool)
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
        """The hops of all layers, the first layer's first, that lead to the wanted nodes."""
        found: list[Hop] = []
        targets = wanted
        for layer in reversed(range(layers)):
            hop = self.hop(targets, scored, fan_out, key(draw, layer))
            found.append(hop)
            targets = hop.sources
        return found[::-1]


def _union(some: Int64, others: Int64, count: int) -> Int64:
    """The distinct nodes of both, ascending."""
    seen = np.zeros(count, bool)
    seen[some] = True
    seen[others] = True
    return np.flatnonzero(seen)
