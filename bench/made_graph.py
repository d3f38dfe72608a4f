"""A typed graph made from a seed: of the size of the HGT guide's graph, or of PrimeKG's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TYPES = 10
#: nodes, links, relations
GRAPHS = {"guide": (66_903, 100_000, 15), "primekg": (129_375, 4_050_249, 30)}

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class MadeGraph:
    """Links between nodes 0..N - 1, those of a type together.

    sizes: nodes of each type; ends: [R, 2] the types of heads and tails of each relation.
    """

    sizes: Int64
    ends: Int64
    head: Int64
    relation: Int64
    tail: Int64

    @property
    def offsets(self) -> Int64:
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def both_ends(self) -> Int64:
        """[2R, 2] the types of sources and targets of messages, back by relation r + R."""
        return np.concatenate([self.ends, self.ends[:, ::-1]])

    def messages(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Source, relation and target of each link's two messages, and the link, by relation."""
        source = np.concatenate([self.head, self.tail])
        relation = np.concatenate([self.relation, self.relation + len(self.ends)])
        target = np.concatenate([self.tail, self.head])
        link = np.tile(np.arange(len(self.head)), 2)
        order = np.lexsort((source, relation))
        return source[order], relation[order], target[order], link[order]


def made_graph(name: str, scale: float = 1.0) -> MadeGraph:
    """Relations of equal size between uniform nodes of two types each."""
    nodes, links, relations = GRAPHS[name]
    nodes, links = int(nodes * scale), int(links * scale)
    generator = np.random.default_rng(0)
    share = generator.dirichlet(np.full(TYPES, 2.0))
    sizes = np.maximum(nodes // 1000 + 1, (share * nodes).astype(np.int64))
    sizes[np.argmax(sizes)] += nodes - sizes.sum()
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ends = generator.integers(TYPES, size=(relations, 2))
    relation = np.arange(links) % relations
    low, high = offsets[ends[relation]], offsets[ends[relation] + 1]
    head, tail = generator.integers(low, high).T
    return MadeGraph(sizes, ends, head, relation, tail)
