"""Sample the links and negative nodes of a training step on a typed graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, matches, pair_mask, ragged_offsets
from hasten.objectives.base import Batch
from hasten.objectives.permutations import LastValueCache, cached_permutation
from hasten.ops.graph.message_graph import MessageGraph
from hasten.ops.random import Stream, integers, key, permutation

Mode = Literal["full", "edges", "neighbors"]
LinkLoss = Literal["logistic", "softmax"]
#: independent random numbers, also of those in contrastive.py
_LINKS, _NODES, _CHOICE = 0, 4, 5


@dataclass(frozen=True)
class LinkSampling:
    """How the links and negatives of a step are sampled.

    batch_size: links per relation (mode neighbors: nodes). share: at most this share of the links
    of a relation. steps: per epoch, None: until every link was scored once. negatives: nodes per
    relation and side. loss: binary cross-entropy, or cross-entropy over all negatives.
    """

    mode: Mode
    batch_size: int
    share: float
    steps: int | None
    negatives: int
    fan_out: int | None
    loss: LinkLoss


class LinkSampler:
    """Samples the links of each step and their negatives."""

    def __init__(self, graph: MessageGraph, sampling: LinkSampling) -> None:
        self.graph, self.sampling = graph, sampling
        #: number of links
        self.links = len(graph.head)
        self.bounds = np.searchsorted(graph.kind, np.arange(len(graph.types.source) + 1))
        self.known = [_known(graph, heads) for heads in (False, True)]
        self._orders: LastValueCache[list[Int64]] = LastValueCache()
        self._node_order: LastValueCache[Tensor] = LastValueCache()
        self._negatives: LastValueCache[dict[tuple[int, int], Int64]] = LastValueCache()

    @cached_property
    def _incident(self) -> tuple[Int64, Int64, Int64]:
        """Endpoints of links by node, their offsets, and the nodes that have links.

        Endpoint i is the head of link i, endpoint i + number of links its tail.
        """
        ends = np.concatenate([self.graph.head, self.graph.tail])
        offsets = ragged_offsets(ends, self.graph.nodes)
        return np.argsort(ends, kind="stable"), offsets, np.flatnonzero(np.diff(offsets))

    @property
    def _links_per_step(self) -> Int64:
        """[R] the most links of each relation that a step scores."""
        allowed = np.floor(np.diff(self.bounds) * self.sampling.share).astype(np.int64)
        return np.minimum(self.sampling.batch_size, np.maximum(allowed, 1))

    def steps(self) -> int:
        """Steps per epoch."""
        if self.sampling.steps is not None:
            return self.sampling.steps
        if self.sampling.mode == "neighbors":
            return -(-len(self._incident[2]) // self.sampling.batch_size)
        return int(np.max(-(-np.diff(self.bounds) // self._links_per_step)))

    @property
    def capacities(self) -> Int64:
        """[R] the most links of each relation in a step by relation, and 0 without links."""
        count, each = np.diff(self.bounds), self._links_per_step
        if self.sampling.steps is None:
            each = -(-count // self.steps())
        return np.minimum(each, count)

    @property
    def most_candidates(self) -> int:
        """The most nodes of :meth:`negatives`."""
        types = self.graph.types
        sizes = types.sizes[np.concatenate([types.source, types.target])]
        return int(min(self.sampling.negatives, sizes.max(initial=0)))

    def sample(self, seed: int, epoch: int, index: int) -> Int64:
        """The links that a step scores, ascending."""
        by_node = self.sampling.mode == "neighbors"
        return (self._by_node if by_node else self._by_relation)(seed, epoch, index)

    def _by_relation(self, seed: int, epoch: int, index: int) -> Int64:
        """Some links of every relation: each once per epoch, or as many as fit."""

        def permute() -> list[Int64]:
            return [
                permutation(int(size), key(seed, Stream.PERMUTATION, epoch, _LINKS, r)).numpy()
                for r, size in enumerate(np.diff(self.bounds))
            ]

        orders = self._orders.get((seed, epoch), permute)
        links, steps = [], self.steps()
        for first, order, each in zip(self.bounds, orders, self._links_per_step, strict=False):
            count = len(order)
            if not count:
                continue
            if self.sampling.steps is None:
                positions = np.arange(index * count // steps, (index + 1) * count // steps)
            else:
                positions = (index * each + np.arange(each)) % count
            links.append(first + np.sort(order[positions]))
        return np.concatenate(links)

    def _by_node(self, seed: int, epoch: int, index: int) -> Int64:
        """One link of each of some nodes."""
        incident, offsets, linked = self._incident
        count = len(linked)
        order = cached_permutation(self._node_order, count, seed, epoch, _NODES).numpy()
        size = min(self.sampling.batch_size, count)
        positions = index * size + np.arange(size)
        if self.sampling.steps is None:
            positions = positions[positions < count]
        nodes = linked[order[positions % count]]
        base = key(seed, Stream.POSITIVES, epoch, index, _CHOICE)
        degree = torch.from_numpy(offsets[nodes + 1] - offsets[nodes])
        chosen = integers(degree, base, torch.from_numpy(nodes)).numpy()
        return np.unique(incident[offsets[nodes] + chosen] % self.links)

    def negatives(self, batch: Batch, relation: int, side: int) -> Int64:
        """Candidate tails (side 0) or heads (1) of a relation: nodes of its type, ascending."""
        types = self.graph.types
        kind = (types.target, types.source)[side][relation]
        first, size = int(types.offsets[kind]), int(types.sizes[kind])
        if size <= self.sampling.negatives:
            return np.arange(first, first + size)
        sampled = self._negatives.get(batch.key, dict)
        if (relation, side) not in sampled:
            base = key(batch.seed, Stream.NEGATIVES, batch.epoch, batch.index, relation, side)
            nodes = integers(size, base, torch.arange(self.sampling.negatives)).numpy()
            sampled[relation, side] = np.unique(first + nodes)
        return sampled[relation, side]

    def unknown(self, relation: int, side: int, given: Int64, candidates: Int64) -> Tensor:
        """Bool [B, M]: whether a candidate is not known to be linked to a given node [B]."""
        codes, answers = self.known[side]
        row, place = matches(relation * self.graph.nodes + given, codes)
        known = pair_mask(row, answers[place], len(given), candidates)
        return torch.from_numpy(~known)


def _known(graph: MessageGraph, heads: bool) -> tuple[Int64, Int64]:
    """Codes of all (relation, given node), ascending, and the node that each is linked to.

    heads: tails are given and heads are the answers.
    """
    is_symmetric = graph.types.symmetric[graph.kind]
    query_nodes, other = (graph.tail, graph.head) if heads else (graph.head, graph.tail)
    codes = np.concatenate(
        [graph.kind * graph.nodes + query_nodes, (graph.kind * graph.nodes + other)[is_symmetric]]
    )
    answer = np.concatenate([other, query_nodes[is_symmetric]])
    order = np.lexsort((answer, codes))
    return codes[order], answer[order]
