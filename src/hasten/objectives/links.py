"""Training phase of typed graphs: classify links, with a contrastive loss of similar nodes.

A step scores some links of every relation and passes messages along all other links: a scored link
and its reverse pass no messages. With the score p(h, r, t) of a link, the losses are

- link, logistic: ``softplus(-p) + (mean over negatives t' of softplus(p(h, r, t'))) / 2`` + the
  same over negative heads h'. Softmax: ``(log(exp p + sum over t' of exp p(h, r, t')) - p) / 2`` +
  the same over h'. Negatives are sampled once per step, relation and side, from the nodes of the
  right type. A negative that is a known answer in training is ignored;
- contrast: similar nodes against other nodes (:mod:`.contrastive`).

Random numbers are keyed by the step and by what is sampled, not by the micro-batch or process, so
these add up to the same step, with neighbor sampling too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.objectives.contrastive import Contrast, Similar
from hasten.objectives.link_sampling import LinkLoss, LinkSampler, LinkSampling
from hasten.objectives.permutations import LastValueCache
from hasten.ops.buckets import pads_tokens
from hasten.ops.dense.product import rounded_rows
from hasten.ops.dtypes import accumulation_dtype, autocast_dtype
from hasten.ops.graph.message_graph import MessageGraph
from hasten.ops.random import Stream, key


class LinkModel(Protocol):
    """What the phase needs from a model."""

    def encode_all(self, wanted: Int64, scored: NDArray[np.bool_], seed: int) -> Tensor:
        """[S, D] vectors of the wanted nodes from a pass over the whole graph."""
        ...

    def encode_some(
        self, wanted: Int64, scored: NDArray[np.bool_], fan_out: int | None, seed: int
    ) -> Tensor:
        """[S, D] the same from the neighborhoods of the wanted nodes."""
        ...

    def queries(self, vectors: Tensor, relation: int) -> tuple[Tensor, Tensor]:
        """[B, D] vectors to multiply with the other end, and the bias of the relation."""
        ...


class LinkPhase(Phase):
    """Steps over the links of a graph."""

    name = "links"

    def __init__(
        self,
        model: LinkModel,
        graph: MessageGraph,
        sampling: LinkSampling,
        contrast: Similar | None,
    ) -> None:
        assert isinstance(model, nn.Module)
        self.module: nn.Module = model
        self.model: LinkModel = model
        self.graph, self.sampling = graph, sampling
        self.sampler = LinkSampler(graph, sampling)
        self.links = self.sampler.links
        self.contrast = None if contrast is None else Contrast(contrast)
        self._scored_links: LastValueCache[NDArray[np.bool_]] = LastValueCache()
        self._wanted_nodes: LastValueCache[Int64] = LastValueCache()

    def steps(self) -> int:
        return self.sampler.steps()

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        """ids: links, then anchors of the contrastive loss plus the number of links."""
        links, anchors = self.sampler.sample(seed, epoch, index), np.empty(0, np.int64)
        if self.contrast is not None:
            anchors = self.contrast.sample(seed, epoch, index)
        counts = {"examples": float(len(links)), "anchors": float(max(1, len(anchors)))}
        ids = np.concatenate([links, self.links + anchors])
        return Batch(torch.from_numpy(ids), seed, epoch, index, counts)

    def examples(self, batch: Batch) -> int:
        return int(batch.denominators["examples"])

    def parameters(self) -> Sequence[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def _scored(self, batch: Batch) -> NDArray[np.bool_]:
        """Bool [L]: the links that the whole batch scores."""

        def mark() -> NDArray[np.bool_]:
            scored = np.zeros(self.links, bool)
            ids = batch.ids.numpy()
            scored[ids[ids < self.links]] = True
            return scored

        return self._scored_links.get(batch.key, mark)

    def _wanted(self, batch: Batch, ids: Int64) -> Int64:
        """The nodes whose vectors the terms of these examples need, ascending."""
        links = ids[ids < self.links]
        nodes = [self.graph.head[links], self.graph.tail[links]]
        for relation in np.unique(self.graph.kind[links]).tolist():
            nodes += [self.sampler.negatives(batch, relation, side) for side in (0, 1)]
        anchors = ids[ids >= self.links] - self.links
        if self.contrast is not None and len(anchors):
            nodes += list(self.contrast.nodes(batch, anchors))
        return np.unique(np.concatenate(nodes))

    def _wanted_by_batch(self, batch: Batch) -> Int64:
        return self._wanted_nodes.get(batch.key, lambda: self._wanted(batch, batch.ids.numpy()))

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        self._wanted = wrap(self._wanted)  # type: ignore[method-assign]
        self._scored = wrap(self._scored)  # type: ignore[method-assign]

    def encode(self, batch: Batch) -> Encoded:
        """Mode full: the vectors that the batch needs. Other modes encode each micro-batch."""
        if self.sampling.mode != "full":
            return ()
        wanted = self._wanted_by_batch(batch)
        return (self.model.encode_all(wanted, self._scored(batch), self._seed(batch)),)

    def _seed(self, batch: Batch) -> int:
        return key(batch.seed, Stream.NEIGHBORS, batch.epoch, batch.index)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        own = ids.numpy()
        if encoded:
            wanted, vectors = self._wanted_by_batch(batch), encoded[0]
        else:
            wanted = self._wanted(batch, own)
            vectors = self.model.encode_some(
                wanted, self._scored(batch), self.sampling.fan_out, self._seed(batch)
            )
        loss = self.link_loss(batch, vectors, wanted, own[own < self.links])
        terms = [Term("link", loss, batch.denominators["examples"])]
        if self.contrast is not None:
            anchors = own[own >= self.links] - self.links
            loss = vectors.new_zeros((), dtype=accumulation_dtype(vectors))
            if len(anchors):
                nodes = self.contrast.nodes(batch, anchors)
                rows_of = (_rows(vectors, wanted, each).to(loss.dtype) for each in nodes)
                loss = self.contrast.loss(nodes, *rows_of)
            weight = self.contrast.similar.weight
            terms.append(Term("contrast", loss, batch.denominators["anchors"], weight))
        return terms

    def link_loss(self, batch: Batch, vectors: Tensor, wanted: Int64, links: Int64) -> Tensor:
        """The sum over these links (sorted by relation)."""
        total = vectors.new_zeros((), dtype=accumulation_dtype(vectors))
        kinds, begin = np.unique(self.graph.kind[links], return_index=True)
        groups = []
        for kind, part in zip(kinds.tolist(), np.split(links, begin[1:]), strict=True):
            sampled = [self.sampler.negatives(batch, kind, side) for side in (0, 1)]
            groups.append((kind, [self.graph.head[part], self.graph.tail[part], *sampled]))
        for (kind, (head, tail, *candidates)), rows in zip(
            groups, _rows_of_groups(vectors, wanted, [nodes for _, nodes in groups]), strict=True
        ):
            left, right, *tables = rows
            queries, bias = self.model.queries(left, kind)
            if self.sampling.loss == "softmax":
                # its gradient is zero up to rounding, which Adam would amplify
                bias = bias.detach()
            both = queries[: len(head), :] * right[: len(head), :]
            true = both.sum(1, dtype=total.dtype) + bias
            if self.sampling.loss == "logistic":
                total = total + F.softplus(-true).sum()
            # the product with the relation is the same from either side
            given = (queries, self.model.queries(right, kind)[0])
            for side, nodes in enumerate((head, tail)):
                scores = (given[side] @ tables[side].T)[: len(nodes), : len(candidates[side])]
                scores = scores.to(total.dtype) + bias
                unknown = self.sampler.unknown(kind, side, nodes, candidates[side])
                unknown = unknown.to(scores.device)
                total = total + _negative_loss(self.sampling.loss, true, scores, unknown) / 2
        return total


def _rows_of_groups(
    vectors: Tensor, wanted: Int64, groups: Sequence[Sequence[Int64]]
) -> Iterator[Sequence[Tensor]]:
    """For each relation, the rows of each of its lists of nodes, in autocast's precision.

    Under autocast on a CPU a list's rows are followed by copies of the last one, so that products
    have few shapes (see :func:`rounded_rows`).

    Relations are gathered together until they need as many rows as there are vectors. Each gather
    costs a gradient of all vectors; a single gather would hold the gradients of all rows.
    """
    exact = not pads_tokens(vectors.device)
    pending: list[Sequence[Int64]] = []
    for number, group in enumerate(groups, 1):
        pending.append(group)
        nodes = [each if exact else _rounded(each) for group in pending for each in group]
        if number < len(groups) and sum(map(len, nodes)) < len(vectors):
            continue
        rows = _rows(vectors, wanted, np.concatenate(nodes)).to(autocast_dtype(vectors))
        pieces = iter(torch.split(rows, [len(each) for each in nodes]))
        yield from [[next(pieces) for _ in group] for group in pending]
        pending = []


def _rounded(nodes: Int64) -> Int64:
    return np.pad(nodes, (0, rounded_rows(len(nodes)) - len(nodes)), "edge")


def _rows(vectors: Tensor, wanted: Int64, nodes: Int64) -> Tensor:
    index = torch.from_numpy(np.searchsorted(wanted, nodes))
    return vectors.index_select(0, index.to(vectors.device))


def _negative_loss(loss: LinkLoss, true: Tensor, scores: Tensor, unknown: Tensor) -> Tensor:
    """The part of the loss with negatives. true: [B]; scores, unknown: [B, M]."""
    if loss == "softmax":
        negative = scores.masked_fill(~unknown, float("-inf"))
        return (torch.cat([true[:, None], negative], dim=1).logsumexp(1) - true).sum()
    weight = unknown.to(scores.dtype) / unknown.sum(1, keepdim=True).clamp(min=1)
    return (F.softplus(scores) * weight).sum()
