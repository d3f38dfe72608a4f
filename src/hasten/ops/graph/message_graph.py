"""The neighborhoods of nodes in a typed graph: the messages that pass to them.

Links and messages are those of :mod:`hasten.data.graph.messages`, in memory or in the mapped files
of a store. Links that are scored in a step pass no messages in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64, matches, ragged_positions
from hasten.data.graph.messages import IntArray, Links, Messages, endpoints
from hasten.data.graph.node_types import NodeTypes
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.tables import TRAIN, KnowledgeGraph
from hasten.ops.graph.edge_pairs import EdgePairs
from hasten.ops.graph.typed_edges import TypedEdges
from hasten.ops.random import bits, key


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
class MessageGraph(Messages):
    """The messages and the links of a graph's training part.

    stored_endpoints: the result of :func:`endpoints`, if it is in a file.
    """

    types: NodeTypes
    links: Links
    stored_endpoints: tuple[IntArray, Int64] | None = None

    @classmethod
    def of(cls, graph: KnowledgeGraph) -> MessageGraph:  # type: ignore[override]
        """The graph of the training part: of a store in mapped files, else in memory."""
        types = NodeTypes.of(graph)
        if isinstance(graph, MappedGraph):
            return cls(**vars(graph.messages), types=types, links=graph.links,
                       stored_endpoints=graph.endpoints)  # fmt: skip
        links = Links.of(graph.of(TRAIN), types)
        return cls(**vars(Messages.of(links, types)), types=types, links=links)

    @cached_property
    def endpoints(self) -> tuple[IntArray, Int64]:
        """The endpoints of links sorted by node, and the offsets of each node."""
        stored = self.stored_endpoints
        return endpoints(self.links, self.nodes) if stored is None else stored

    def ends(self, links: Int64) -> tuple[Int64, Int64]:
        """The heads and the tails of these links."""
        return self.links.head[links].astype(np.int64), self.links.tail[links].astype(np.int64)

    def kind(self, links: Int64) -> Int64:
        """The relations of these links."""
        return np.searchsorted(self.links.bounds, links, "right") - 1

    def answers(self, relation: int, side: int, given: Int64) -> tuple[Int64, Int64]:
        """All linked tails (side 0) of given heads, or heads (1) of given tails.

        Returns the index of a given node [n], and the node that it is linked to [n].
        """
        relations, symmetric = len(self.types.source), self.types.symmetric[relation]
        number = relation if side == 1 or symmetric else relation + relations
        first, last = self.bounds[number : number + 2].tolist()
        target = self.target[first:last]
        row, place = matches(
            given.astype(target.dtype), target
        )  # in one type: target is not copied
        return row, self.source[first:last][place].astype(np.int64)

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


def _union(some: IntArray, others: Int64, count: int) -> Int64:
    """The distinct nodes of both arrays, ascending."""
    seen = np.zeros(count, bool)
    seen[some] = True
    seen[others] = True
    return np.flatnonzero(seen)
