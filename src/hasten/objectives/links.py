"""The training phase of a typed graph: links against drawn ones, and similar nodes.

A step scores some links of every relation and lets messages pass along the others: what is scored
never passes a message, nor does its reverse. With p(h, r, t) the score of a link:

- link, logistic: ``softplus(-p) + mean over drawn t' of softplus(p(h, r, t')) / 2 + the same of
  drawn h'``; softmax: ``(log(exp p + sum over drawn t' of exp p(h, r, t')) - p) / 2 + the same``.
  Other ends are drawn once a step for each relation and side, of the type that belongs there, and
  count for no link of which they are known in training;
- contrast: similar nodes against others (contrast.py).

Everything drawn is keyed by the step and by what it is drawn for, never by the share: micro-batches
and processes add up to the same step, also where neighbourhoods are sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.arrays import Int64, ragged_offsets
from hasten.objectives.base import Batch, Encoded, SimplePhase, Term
from hasten.objectives.batch_order import Latest
from hasten.objectives.contrastive import Contrast, Similar
from hasten.ops.dtypes import wide
from hasten.ops.graph.message_graph import MessageGraph
from hasten.ops.random import Stream, integers, key, permutation

Found = TypeVar("Found")
Mode = Literal["full", "edges", "neighbors"]
LinkLoss = Literal["logistic", "softmax"]
#: keep the draws of a step apart, from those of contrast.py also
_LINKS, _NODES, _CHOICE = 0, 4, 5


@dataclass(frozen=True)
class Draws:
    """How a step is drawn.

    batch_size: links of each relation (of neighbors: nodes); share: at most this share of a
    relation's links; steps: an epoch, None: until every link was scored; negatives: other ends
    for each relation and side; loss: against each drawn end alone, or against all at once.
    """

    mode: Mode
    batch_size: int
    share: float
    steps: int | None
    negatives: int
    fan_out: int | None
    loss: LinkLoss


class LinkModel(Protocol):
    """What the phase needs of a model."""

    def encode_all(self, wanted: Int64, scored: NDArray[np.bool_], draw: int) -> Tensor:
        """[S, D] vectors of the wanted nodes from a pass over the whole graph."""
        ...

    def encode_some(
        self, wanted: Int64, scored: NDArray[np.bool_], fan_out: int | None, draw: int
    ) -> Tensor:
        """[S, D] the same from the neighbourhoods of the wanted nodes."""
        ...

    def queries(self, vectors: Tensor, relation: int) -> tuple[Tensor, Tensor]:
        """[B, D] what is multiplied with the other end, and the relation's bias."""
        ...


class LinkPhase(SimplePhase):
    """Steps over the links of a graph."""

    name = "links"

    def __init__(
        self, model: LinkModel, graph: MessageGraph, draws: Draws, contrast: Similar | None
    ) -> None:
        assert isinstance(model, nn.Module)
        self.module: nn.Module = model
        self.model: LinkModel = model
        self.graph, self.draws = graph, draws
        self.contrast = None if contrast is None else Contrast(contrast)
        relations = len(graph.types.source)
        self.bounds = np.searchsorted(graph.kind, np.arange(relations + 1))
        self.known = [_known(graph, turned) for turned in (False, True)]
        self._orders: Latest[list[Int64]] = Latest()
        self._node_order: Latest[Int64] = Latest()
        #: what was drawn for the step that runs
        self._drawn: Latest[dict[Hashable, Any]] = Latest()

    @cached_property
    def _incident(self) -> tuple[Int64, Int64, Int64]:
        """For steps by nodes: the ends of links by node, where each begins, and nodes with links.

        An end is its link as a head, and that and the number of links as a tail.
        """
        ends = np.concatenate([self.graph.head, self.graph.tail])
        offsets = ragged_offsets(ends, self.graph.nodes)
        return np.argsort(ends, kind="stable"), offsets, np.flatnonzero(np.diff(offsets))

    def _once(self, batch: Batch, what: Hashable, make: Callable[[], Found]) -> Found:
        """What is made for a step, the first time that it is asked for."""
        drawn = self._drawn.of((batch.seed, batch.epoch, batch.index), dict)
        if what not in drawn:
            drawn[what] = make()
        found: Found = drawn[what]
        return found

    @property
    def links(self) -> int:
        return len(self.graph.head)

    def _each(self) -> Int64:
        """[R] links of each relation that a step scores at most."""
        sizes = np.diff(self.bounds)
        allowed = np.floor(sizes * self.draws.share).astype(np.int64)
        return np.minimum(self.draws.batch_size, np.maximum(allowed, 1))

    def steps(self) -> int:
        if self.draws.steps is not None:
            return self.draws.steps
        if self.draws.mode == "neighbors":
            return -(-len(self._incident[2]) // self.draws.batch_size)
        return int(np.max(-(-np.diff(self.bounds) // self._each())))

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        by_node = self.draws.mode == "neighbors"
        ids = self._by_node(seed, epoch, index) if by_node else self._by_edge(seed, epoch, index)
        chosen = np.empty(0, np.int64)
        if self.contrast is not None:
            chosen = self.contrast.chosen(seed, epoch, index)
        counts = {"links": float(len(ids)), "anchors": float(max(1, len(chosen)))}
        both = np.concatenate([ids, self.links + chosen])
        return Batch(torch.from_numpy(both), seed, epoch, index, counts)

    def _by_edge(self, seed: int, epoch: int, index: int) -> Int64:
        """Some links of every relation: all of them once an epoch, or as many as fit."""

        def draw() -> list[Int64]:
            return [
                permutation(int(size), key(seed, Stream.PERMUTATION, epoch, _LINKS, r)).numpy()
                for r, size in enumerate(np.diff(self.bounds))
            ]

        orders = self._orders.of((seed, epoch), draw)
        found, steps = [], self.steps()
        for first, order, each in zip(self.bounds, orders, self._each(), strict=False):
            count = len(order)
            if not count:
                continue
            if self.draws.steps is None:
                place = np.arange(index * count // steps, (index + 1) * count // steps)
            else:
                place = (index * each + np.arange(each)) % count
            found.append(first + np.sort(order[place]))
        return np.concatenate(found)

    def _by_node(self, seed: int, epoch: int, index: int) -> Int64:
        """One link of each of some nodes."""
        incident, offsets, linked = self._incident
        base, count = key(seed, Stream.PERMUTATION, epoch, _NODES), len(linked)
        order = self._node_order.of((seed, epoch), lambda: permutation(count, base).numpy())
        size = min(self.draws.batch_size, len(order))
        place = index * size + np.arange(size)
        if self.draws.steps is None:
            place = place[place < len(order)]
        nodes = linked[order[place % len(order)]]
        base = key(seed, Stream.POSITIVES, epoch, index, _CHOICE)
        degree = torch.from_numpy(offsets[nodes + 1] - offsets[nodes])
        drawn = integers(degree, base, torch.from_numpy(nodes)).numpy()
        return np.unique(incident[offsets[nodes] + drawn] % self.links)

    def examples(self, batch: Batch) -> int:
        return int(batch.denominators["links"])

    def parameters(self) -> Sequence[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def _scored(self, batch: Batch) -> NDArray[np.bool_]:
        """[L] the links of the whole batch."""

        def mark() -> NDArray[np.bool_]:
            scored = np.zeros(self.links, bool)
            ids = batch.ids.numpy()
            scored[ids[ids < self.links]] = True
            return scored

        return self._once(batch, "scored", mark)

    def _others(self, batch: Batch, relation: int, side: int) -> Int64:
        """Other tails (0) or heads (1) of a relation: distinct nodes of the type, ascending."""
        types = self.graph.types
        kind = (types.target, types.source)[side][relation]
        first, size = int(types.offsets[kind]), int(types.sizes[kind])
        if size <= self.draws.negatives:
            return np.arange(first, first + size)

        def draw() -> Int64:
            base = key(batch.seed, Stream.NEGATIVES, batch.epoch, batch.index, relation, side)
            drawn = integers(size, base, torch.arange(self.draws.negatives)).numpy()
            return np.unique(first + drawn)

        return self._once(batch, (relation, side), draw)

    def _wanted(self, batch: Batch, rows: Int64) -> Int64:
        """The nodes whose vectors the terms of these rows need, ascending."""
        links = rows[rows < self.links]
        found = [self.graph.head[links], self.graph.tail[links]]
        for relation in np.unique(self.graph.kind[links]).tolist():
            found += [self._others(batch, relation, side) for side in (0, 1)]
        anchors = rows[rows >= self.links] - self.links
        if self.contrast is not None and len(anchors):
            found += list(self.contrast.nodes(batch, anchors))
        return np.unique(np.concatenate(found))

    def encode(self, batch: Batch) -> Encoded:
        """In full mode the vectors that the batch needs; otherwise every share has its own."""
        if self.draws.mode != "full":
            return ()
        wanted = self._all_wanted(batch)
        return (self.model.encode_all(wanted, self._scored(batch), self._draw(batch)),)

    def _all_wanted(self, batch: Batch) -> Int64:
        return self._once(batch, "wanted", lambda: self._wanted(batch, batch.ids.numpy()))

    def _draw(self, batch: Batch) -> int:
        return key(batch.seed, Stream.NEIGHBOURS, batch.epoch, batch.index)

    def terms(self, encoded: Encoded, batch: Batch, rows: Tensor) -> Sequence[Term]:
        mine = rows.numpy()
        if encoded:
            wanted, vectors = self._all_wanted(batch), encoded[0]
        else:
            wanted = self._wanted(batch, mine)
            vectors = self.model.encode_some(
                wanted, self._scored(batch), self.draws.fan_out, self._draw(batch)
            )
        links = mine[mine < self.links]
        terms = [
            Term("link", self.link_loss(batch, vectors, wanted, links), batch.denominators["links"])
        ]
        if self.contrast is not None:
            anchors = mine[mine >= self.links] - self.links
            loss = vectors.new_zeros((), dtype=wide(vectors))
            if len(anchors):
                nodes = self.contrast.nodes(batch, anchors)
                rows_of = (self._rows(vectors, wanted, each).to(loss.dtype) for each in nodes)
                loss = self.contrast.loss(nodes, *rows_of)
            terms.append(
                Term("contrast", loss, batch.denominators["anchors"], self.contrast.weight)
            )
        return terms

    def link_loss(self, batch: Batch, vectors: Tensor, wanted: Int64, links: Int64) -> Tensor:
        """The sum over these links (by relation)."""
        total = vectors.new_zeros((), dtype=wide(vectors))
        kinds, begin = np.unique(self.graph.kind[links], return_index=True)
        asked = []
        for kind, part in zip(kinds.tolist(), np.split(links, begin[1:]), strict=True):
            others = [self._others(batch, kind, side) for side in (0, 1)]
            asked.append((kind, [self.graph.head[part], self.graph.tail[part], *others]))
        for (kind, (head, tail, *others)), rows in zip(
            asked, self._rows_of_all(vectors, wanted, [nodes for _, nodes in asked]), strict=True
        ):
            left, right, *tables = rows
            queries, bias = self.model.queries(left, kind)
            if self.draws.loss == "softmax":
                # its gradient is zero but for rounding, which Adam would make steps of
                bias = bias.detach()
            own = torch.linalg.vecdot(queries.to(total.dtype), right.to(total.dtype)) + bias
            if self.draws.loss == "logistic":
                total = total + F.softplus(-own).sum()
            # the product with the relation is the same from either side
            given = (queries, self.model.queries(right, kind)[0])
            for side, nodes in enumerate((head, tail)):
                scores = (given[side] @ tables[side].T).to(total.dtype) + bias
                free = self._free(kind, side, nodes, others[side]).to(scores.device)
                total = total + _against_drawn(self.draws.loss, own, scores, free) / 2
        return total

    def _rows_of_all(
        self, vectors: Tensor, wanted: Int64, asked: Sequence[Sequence[Int64]]
    ) -> Iterator[Sequence[Tensor]]:
        """For each relation the rows of each of its lists of nodes.

        Relations are taken together until they ask for as many rows as there are vectors: every
        taking costs a gradient of all vectors, and all at once would hold all rows' gradients.
        """
        waiting: list[Sequence[Int64]] = []
        for number, lists in enumerate(asked, 1):
            waiting.append(lists)
            nodes = [each for lists in waiting for each in lists]
            if number < len(asked) and sum(map(len, nodes)) < len(vectors):
                continue
            rows = self._rows(vectors, wanted, np.concatenate(nodes))
            pieces = iter(torch.split(rows, [len(each) for each in nodes]))
            yield from [[next(pieces) for _ in lists] for lists in waiting]
            waiting = []

    def _rows(self, vectors: Tensor, wanted: Int64, nodes: Int64) -> Tensor:
        place = torch.from_numpy(np.searchsorted(wanted, nodes))
        return vectors.index_select(0, place.to(vectors.device))

    def _free(self, relation: int, side: int, given: Int64, others: Int64) -> Tensor:
        """Bool [B, M] which drawn ends are no known ones of the given nodes."""
        codes, answers = self.known[side]
        wanted = relation * self.graph.nodes + given
        first = np.searchsorted(codes, wanted, "left")
        lengths = np.searchsorted(codes, wanted, "right") - first
        row = np.repeat(np.arange(len(given)), lengths)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], lengths)
        answer = answers[places]
        slot = np.minimum(np.searchsorted(others, answer), len(others) - 1)
        hit = others[slot] == answer
        free = np.ones((len(given), len(others)), bool)
        free[row[hit], slot[hit]] = False
        return torch.from_numpy(free)


def _against_drawn(loss: LinkLoss, own: Tensor, scores: Tensor, free: Tensor) -> Tensor:
    """What links of scores own [B] lose to drawn ends of scores [B, M], of which some are free."""
    if loss == "softmax":
        others = scores.masked_fill(~free, float("-inf"))
        return (torch.cat([own[:, None], others], dim=1).logsumexp(1) - own).sum()
    weight = free.to(scores.dtype) / free.sum(1, keepdim=True).clamp(min=1)
    return (F.softplus(scores) * weight).sum()


def _known(graph: MessageGraph, turned: bool) -> tuple[Int64, Int64]:
    """The known other ends of every (relation, node): codes, ascending, and the other end of each.

    turned: tails are given, heads are asked for.
    """
    both = graph.types.symmetric[graph.kind]
    given, other = (graph.tail, graph.head) if turned else (graph.head, graph.tail)
    codes = np.concatenate(
        [graph.kind * graph.nodes + given, (graph.kind * graph.nodes + other)[both]]
    )
    answer = np.concatenate([other, given[both]])
    order = np.lexsort((answer, codes))
    return codes[order], answer[order]
