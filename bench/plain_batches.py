"""Training examples drawn for a whole batch at once, for the plain sides of recommenders."""

from __future__ import annotations

import torch
from torch import Tensor


def negatives(known: Tensor, row: Tensor, count: int) -> Tensor:
    """[B] a column under ``count`` for each row, none of them an entry of its row.

    known: the sorted keys ``row * count + column`` of all entries.
    """
    found = torch.randint(count, row.shape)
    left = torch.arange(len(row))
    while len(left):
        key = row[left] * count + found[left]
        at = torch.searchsorted(known, key).clamp_(max=len(known) - 1)
        left = left[known[at] == key]
        found[left] = torch.randint(count, left.shape)
    return found


class PairBatches:
    """Users with one of their items and another item.

    by_user: users are drawn uniformly, then one of their items; otherwise an epoch has every pair.
    """

    def __init__(
        self, user: Tensor, item: Tensor, items: int, size: int, *, by_user: bool = False
    ) -> None:
        self._known, self._items, self._size = torch.unique(user * items + item), items, size
        self._user, self._item = self._known // items, self._known % items
        self._active, counts = torch.unique(self._user, return_counts=True)
        self._counts, self._begin = counts, counts.cumsum(0) - counts
        self._by_user = by_user
        self.steps = -(-len(self._known) // size)

    def draw(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """User, positive and negative of the batch of this number: int64 [B] each."""
        number = index % self.steps
        if self._by_user:
            size = min(self._size, len(self._known) - number * self._size)
            at = torch.randint(len(self._active), (size,))
            place = (torch.rand(size, dtype=torch.float64) * self._counts[at]).long()
            of = self._begin[at] + place
        else:
            if number == 0:
                self._order = torch.randperm(len(self._known))
            of = self._order[number * self._size : (number + 1) * self._size]
        user = self._user[of]
        return user, self._item[of], negatives(self._known, user, self._items)


class EdgeBatches:
    """Edges (head, relation, tail) with a node that is no tail of their head and relation.

    Heads are drawn uniformly, then one of their edges.
    """

    def __init__(
        self, head: Tensor, relation: Tensor, tail: Tensor, nodes: int, relations: int, size: int
    ) -> None:
        """The edges come sorted by head, relation and tail."""
        self._query, self._tail, self._relation = head * relations + relation, tail, relation
        self._known, self._nodes, self._size = self._query * nodes + tail, nodes, size
        self._head, counts = torch.unique_consecutive(head, return_counts=True)
        self._counts, self._begin = counts, counts.cumsum(0) - counts
        self.steps = -(-len(head) // size)

    def draw(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Head, relation, tail and other node: int64 [B] each, sorted by relation."""
        at = torch.randint(len(self._head), (self._size,))
        place = (torch.rand(self._size, dtype=torch.float64) * self._counts[at]).long()
        edge = self._begin[at] + place
        relation, order = self._relation[edge].sort()
        edge = edge[order]
        other = negatives(self._known, self._query[edge], self._nodes)
        return self._head[at[order]], relation, self._tail[edge], other
