"""Sample the links and negative nodes of a training step on a typed graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, pair_mask
from hasten.data.graph.messages import IntArray, narrow
from hasten.objectives.base import Batch
from hasten.ops.graph.message_graph import MessageGraph
from hasten.ops.permutations import LastValueCache, cached_permutation
from hasten.ops.random import Stream, integers, key, permutation

Mode = Literal["full", "edges", "neighbors"]
LinkLoss = Literal["logistic", "softmax"]
#: independent random numbers, also of those in contrastive.py
_LINKS, _NODES, _CHOICE = 0, 4, 5


@dataclass(frozen=True)
class LinkSampling:
    """How the links and negatives of a step are sampled.

    batch_size: links per relation (mode neighbors: nodes). share: at most this share of the links
    of a relation. steps: per epoch, None: until every link was scored once. negatives: nodes of
    each type. loss: binary cross-entropy, or cross-entropy over all negatives. self_score: whether
    nodes have a score with themselves, and are negatives of their own queries. n3: weight of the
    cubes of both ends of each link. excluded: by relation, whether nodes are no answers to
    themselves, so no negatives of their own queries. filtered: whether known answers of a query are
    no negatives of it; else only the other end of the link is none. smoothing: of the labels of a
    softmax.
    """

    mode: Mode
    batch_size: int
    share: float
    steps: int | None
    negatives: int
    fan_out: int | None
    loss: LinkLoss
    self_score: bool = False
    n3: float = 0.0
    excluded: Sequence[bool] = ()
    filtered: bool = True
    smoothing: float = 0.0


class LinkSampler:
    """Samples the links of each step and their negatives."""

    def __init__(self, graph: MessageGraph, sampling: LinkSampling) -> None:
        self.graph, self.sampling = graph, sampling
        #: number of links
        self.links = len(graph.links)
        self.bounds = graph.links.bounds
        self._orders: LastValueCache[list[IntArray]] = LastValueCache()
        self._node_order: LastValueCache[Tensor] = LastValueCache()
        self._negatives: LastValueCache[dict[int, Int64]] = LastValueCache()

    @cached_property
    def _linked(self) -> Int64:
        """The nodes that have links."""
        return np.flatnonzero(np.diff(self.graph.endpoints[1]))

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
            return -(-len(self._linked) // self.sampling.batch_size)
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

        def permute() -> list[IntArray]:
            keys = (key(seed, Stream.PERMUTATION, epoch, _LINKS, r) for r in range(relations))
            sizes = np.diff(self.bounds).tolist()
            return [
                narrow(permutation(size, base).numpy(), size)
                for size, base in zip(sizes, keys, strict=True)
            ]

        relations = len(self.bounds) - 1

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
        (incident, offsets), linked = self.graph.endpoints, self._linked
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
        return np.unique(incident[offsets[nodes] + chosen].astype(np.int64) % self.links)

    def candidate_types(self, relations: Int64, side: int) -> Int64:
        """The types of the candidate tails (side 0) or heads (1) of relations."""
        types = self.graph.types
        return (types.target, types.source)[side][relations]

    def negatives(self, batch: Batch, kind: int) -> Int64:
        """Candidates for the queries of a step whose answers are of this type, ascending."""
        types = self.graph.types
        first, size = int(types.offsets[kind]), int(types.sizes[kind])
        if size <= self.sampling.negatives:
            return np.arange(first, first + size)
        sampled = self._negatives.get(batch.key, dict)
        if kind not in sampled:
            base = key(batch.seed, Stream.NEGATIVES, batch.epoch, batch.index, kind)
            nodes = integers(size, base, torch.arange(self.sampling.negatives)).numpy()
            sampled[kind] = np.unique(first + nodes)
        return sampled[kind]

    def unknown(
        self, relation: int, side: int, given: Int64, answer: Int64, candidates: Int64
    ) -> Tensor:
        """Bool [B, M]: whether a candidate is a negative of a given node [B] and its answer [B].

        It is not if the two are known to be linked; without filtering, if it is the answer.

        [B, M + 1] for a relation of :meth:`adds_query`: the given nodes themselves are the last
        column, and are left out of the others.
        """
        if self.sampling.filtered:
            row, answers = self.graph.answers(relation, side, given)
        else:
            row, answers = np.arange(len(given)), answer
        known = pair_mask(row, answers, len(given), candidates)
        if self.adds_query(relation):
            count = np.arange(len(given))
            known |= pair_mask(count, given, len(given), candidates)
            linked = np.isin(count, row[answers == given[row]])
            known = np.concatenate([known, linked[:, None]], axis=1)
        elif self.sampling.excluded and self.sampling.excluded[relation]:
            known |= pair_mask(np.arange(len(given)), given, len(given), candidates)
        return torch.from_numpy(~known)

    def adds_query(self, relation: int) -> bool:
        """Whether the node of a query is a candidate of its own, beside :meth:`negatives`."""
        types = self.graph.types
        return self.sampling.self_score and bool(types.source[relation] == types.target[relation])
