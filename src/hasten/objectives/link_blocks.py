"""The link loss of all relations at once, with few kernel launches.

The links of a relation are scored against candidate tails, and again against candidate heads. The
queries of both are arranged in blocks of :data:`BLOCK` slots of one relation and side, and the
candidates in lists of the same length: the scores are one batched product over blocks. Slots and
candidates beyond a relation's own are marked as known, which adds nothing to the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.objectives.base import Batch
from hasten.objectives.link_sampling import LinkLoss, LinkSampler
from hasten.ops.dtypes import accumulation_dtype, autocast_dtype

#: slots per block: a block repeats the candidates of its relation
BLOCK = 128


@dataclass(frozen=True, eq=False)
class LinkBlocks:
    """L links in B blocks of slots, and the C candidates of each of G relations and sides.

    nodes: int64 [2L + G·C] heads, tails and candidates, as indices of the vectors; relation: int64
    [2L] of heads and tails; slot: int64 [B·BLOCK], the head or tail of each slot, and link: its
    link; group: int64 [B]; unknown: bool [B·BLOCK, C], whether a candidate counts.
    """

    nodes: Tensor
    relation: Tensor
    slot: Tensor
    link: Tensor
    group: Tensor
    unknown: Tensor

    @classmethod
    def build(
        cls,
        sampler: LinkSampler,
        batch: Batch,
        wanted: Int64,
        links: Int64,
    ) -> LinkBlocks:
        """On the host; links: sorted by relation; wanted: the nodes of the vectors, ascending."""
        graph, count = sampler.graph, len(links)
        relation = graph.kind(links)
        kinds, begin, sizes = np.unique(relation, return_index=True, return_counts=True)
        groups = [(kind, side) for side in (0, 1) for kind in range(len(kinds))]
        lists = [sampler.negatives(batch, int(kinds[kind]), side) for kind, side in groups]
        width = max(map(len, lists), default=0)
        candidates = np.full((len(lists), width), wanted[0] if len(wanted) else 0)
        blocks = -(-sizes // BLOCK)
        group = np.repeat(np.arange(len(groups)), np.tile(blocks, 2))
        slot = np.zeros(len(group) * BLOCK, np.int64)
        unknown = np.zeros((len(slot), width), bool)
        ends, first = graph.ends(links), 0
        for number, (kind, side) in enumerate(groups):
            link_rows, negatives = np.arange(begin[kind], begin[kind] + sizes[kind]), lists[number]
            candidates[number, : len(negatives)] = negatives
            rows = slice(first, first + len(link_rows))
            slot[rows] = link_rows + side * count
            known = sampler.unknown(int(kinds[kind]), side, ends[side][link_rows], negatives)
            unknown[rows, : len(negatives)] = known.numpy()
            first += BLOCK * int(blocks[kind])
        nodes = np.searchsorted(wanted, np.concatenate([*ends, candidates.reshape(-1)]))
        parts = [nodes, np.tile(relation, 2), slot, slot % count, group, unknown]
        return cls(*map(torch.from_numpy, parts))


def link_loss(
    loss: LinkLoss,
    queries: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    blocks: LinkBlocks,
    vectors: Tensor,
) -> Tensor:
    """The sum over the links. queries: :meth:`.links.LinkModel.queries`, of a relation per row."""
    full, end_count = accumulation_dtype(vectors), len(blocks.relation)
    rows = vectors.index_select(0, blocks.nodes).to(autocast_dtype(vectors))
    ends, candidates = torch.split(rows, [end_count, len(rows) - end_count])
    query_vectors, bias = queries(ends, blocks.relation)
    if loss == "softmax":
        # its gradient is zero up to rounding, which Adam would amplify
        bias = bias.detach()
    true = (query_vectors[: end_count // 2] * ends[end_count // 2 :]).sum(1, dtype=full) + bias[
        : end_count // 2
    ]
    of_blocks = query_vectors.index_select(0, blocks.slot).view(-1, BLOCK, query_vectors.shape[1])
    tables = candidates.view(-1, blocks.unknown.shape[1], candidates.shape[1])
    scores = torch.bmm(of_blocks, tables.index_select(0, blocks.group).mT)
    scores = scores.view_as(blocks.unknown).to(full)
    scores = scores + bias.index_select(0, blocks.slot)[:, None]
    total = negative_loss(loss, true.index_select(0, blocks.link), scores, blocks.unknown) / 2
    return total + F.softplus(-true).sum() if loss == "logistic" else total


def negative_loss(loss: LinkLoss, true: Tensor, scores: Tensor, unknown: Tensor) -> Tensor:
    """The part of the loss with negatives. true: [B]; scores, unknown: [B, M]."""
    if loss == "softmax":
        negative = scores.masked_fill(~unknown, float("-inf"))
        return (torch.cat([true[:, None], negative], dim=1).logsumexp(1) - true).sum()
    weight = unknown.to(scores.dtype) / unknown.sum(1, keepdim=True).clamp(min=1)
    return (F.softplus(scores) * weight).sum()
