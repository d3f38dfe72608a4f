"""The collaborative knowledge graph: training pairs and facts about the items as one graph.

Nodes are the E entities (the N items first), then the U users. Relations: 0 from a user to an
item, 1 back, 2 + r of the facts, 2 + R + r their inverses: 2R + 2 in all (Wang et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, Dataset
from hasten.errors import DataError
from hasten.ops.graph.csr import CSR


@dataclass(frozen=True, eq=False)
class CollaborativeGraph:
    """Distinct edges sorted by head, relation and tail: int64 [n] each."""

    head: Int64
    relation: Int64
    tail: Int64
    entities: int
    nodes: int
    relations: int

    @classmethod
    def of(cls, dataset: Dataset) -> CollaborativeGraph:
        """The graph of the training part; validation and test pairs are not in it.

        Raises DataError if its nodes and relations are too many.
        """
        facts = dataset.facts
        assert facts is not None
        pairs = CSR.of(dataset.histories(TRAIN)).distinct()
        entities, kinds = len(facts.entities), len(facts.relations)
        user, item = pairs.rows + entities, pairs.items
        known = facts.triples
        forth, back = np.zeros_like(user), np.ones_like(user)
        head = np.concatenate([user, item, known.head, known.tail])
        relation = np.concatenate([forth, back, known.relation + 2, known.relation + (2 + kinds)])
        tail = np.concatenate([item, user, known.tail, known.head])
        nodes, count = entities + len(dataset.users), 2 * kinds + 2
        require_keys(nodes, count)
        # sorting whole keys is several times faster than finding an order of three columns
        key = np.sort((head * count + relation) * nodes + tail)
        rest, tail = np.divmod(key, nodes)
        head, relation = np.divmod(rest, count)
        return cls(head, relation, tail, entities, nodes, count)

    def __len__(self) -> int:
        return len(self.head)

    @property
    def query_of_edge(self) -> Int64:
        """[n] the number of each edge's distinct (head, relation), ascending."""
        new = np.ones(len(self), bool)
        new[1:] = (self.head[1:] != self.head[:-1]) | (self.relation[1:] != self.relation[:-1])
        return np.asarray(np.cumsum(new) - 1, np.int64)

    def normalized(self) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        """float32 [n], the initial weights: 1 / number of the head's edges of that relation."""
        query = self.query_of_edge
        return (1.0 / np.bincount(query))[query].astype(np.float32)


def require_keys(nodes: int, relations: int) -> None:
    """Raise DataError if (head, relation, tail) do not fit one int64 key."""
    if nodes * nodes * relations >= 2**63:
        most = (2**63 - 1) // (nodes * nodes)
        raise DataError(
            f"a graph of {nodes:,} users, items and entities may have {most:,} relations, counting "
            f"both directions, and it has {relations:,}: leave out facts of rare relations, or "
            "entities"
        )
