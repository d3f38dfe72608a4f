"""The link loss: of all relations at once, with few kernel launches, or one by one for a CPU.

The links of a relation are scored against candidate tails, and again against candidate heads. At
once, the queries of both are arranged in blocks of :data:`BLOCK` slots of one relation and side,
and the candidates in lists of the same length: the scores are one batched product over blocks.
Slots and candidates beyond a relation's own are marked as known, which adds nothing to the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.objectives.base import Batch
from hasten.objectives.link_sampling import LinkLoss, LinkSampler
from hasten.ops.buckets import pads_tokens
from hasten.ops.dense.product import rounded_rows
from hasten.ops.dtypes import accumulation_dtype, autocast_dtype

#: :meth:`.links.LinkModel.queries`
Queries = Callable[[Tensor, Any], tuple[Tensor, Tensor, Tensor | None]]

#: slots per block: a block repeats the candidates of its relation
BLOCK = 128


@dataclass(frozen=True, eq=False)
class LinkBlocks:
    """L links in B blocks of slots, and the C candidates of each of G relations and sides.

    nodes: int64 [2L + G·C] heads, tails and candidates, as indices of the vectors; relation: int64
    [2L] of heads and tails; slot: int64 [B·BLOCK], the head or tail of each slot; group: int64 [B];
    unknown: bool [B·BLOCK, C], whether a candidate counts. weight: float32 [L], 0 for a link that
    is padding; None: all are 1. adds_query: whether unknown has one more column, for the nodes of
    the queries themselves.
    """

    nodes: Tensor
    relation: Tensor
    slot: Tensor
    group: Tensor
    unknown: Tensor
    weight: Tensor | None = None
    adds_query: bool = field(default=False, kw_only=True)

    @classmethod
    def build(
        cls,
        sampler: LinkSampler,
        batch: Batch,
        wanted: Int64,
        links: Int64,
        capacities: Int64 | None = None,
    ) -> LinkBlocks:
        """On the host; links: sorted by relation; wanted: the nodes of the vectors, ascending.

        capacities: int64 [R], numbers to which the links of each relation are padded with links of
        weight 0, so that all batches have the same shapes; candidates are padded too.
        """
        graph, weight = sampler.graph, None
        relation = graph.kind(links)
        kinds, begin, sizes = np.unique(relation, return_index=True, return_counts=True)
        most, slots = 0, sizes
        if capacities is not None:
            kinds, most = np.flatnonzero(capacities), sampler.most_candidates
            sizes, slots = (
                np.bincount(relation, minlength=len(capacities))[kinds],
                capacities[kinds],
            )
            place, real = _padded(sizes, slots)
            links, relation, begin = links[place], np.repeat(kinds, slots), np.cumsum(slots) - slots
            weight = torch.from_numpy(real.astype(np.float32))
        count = len(links)
        groups = [(kind, side) for side in (0, 1) for kind in range(len(kinds))]
        lists = [sampler.negatives(batch, int(kinds[kind]), side) for kind, side in groups]
        width = max([most, *map(len, lists)])
        candidates = np.full((len(lists), width), wanted[0] if len(wanted) else 0)
        blocks = -(-slots // BLOCK)
        group = np.repeat(np.arange(len(groups)), np.tile(blocks, 2))
        slot = np.zeros(len(group) * BLOCK, np.int64)
        adds_query = [sampler.adds_query(int(kind)) for kind in kinds]
        unknown = np.zeros((len(slot), width + any(adds_query)), bool)
        ends, first = graph.ends(links), 0
        for number, (kind, side) in enumerate(groups):
            link_rows, negatives = np.arange(begin[kind], begin[kind] + sizes[kind]), lists[number]
            candidates[number, : len(negatives)] = negatives
            rows = slice(first, first + len(link_rows))
            slot[rows] = link_rows + side * count
            given, answer = (each[link_rows] for each in (ends[side], ends[1 - side]))
            known = sampler.unknown(int(kinds[kind]), side, given, answer, negatives)
            unknown[rows, : len(negatives)] = known[:, : len(negatives)].numpy()
            if adds_query[kind]:
                unknown[rows, -1] = known[:, -1].numpy()
            first += BLOCK * int(blocks[kind])
        nodes = np.searchsorted(wanted, np.concatenate([*ends, candidates.reshape(-1)]))
        parts = [nodes, np.tile(relation, 2), slot, group, unknown]
        blocks_of_links = cls(*map(torch.from_numpy, parts))
        return replace(blocks_of_links, weight=weight, adds_query=any(adds_query))


def _padded(sizes: Int64, capacities: Int64) -> tuple[Int64, NDArray[np.bool_]]:
    """For each group's places, the index of its member, or of any; and which are members."""
    begin = np.cumsum(sizes) - sizes
    within = np.arange(capacities.sum()) - np.repeat(np.cumsum(capacities) - capacities, capacities)
    real = within < np.repeat(sizes, capacities)
    return np.where(real, within + np.repeat(begin, capacities), 0), real


def link_loss(
    loss: LinkLoss,
    queries: Queries,
    blocks: LinkBlocks,
    vectors: Tensor,
) -> Tensor:
    """The sum over the links. queries: :meth:`.links.LinkModel.queries`, of a relation per row."""
    full, end_count = accumulation_dtype(vectors), len(blocks.relation)
    rows = vectors.index_select(0, blocks.nodes).to(autocast_dtype(vectors))
    ends, candidates = torch.split(rows, [end_count, len(rows) - end_count])
    query_vectors, bias, self_score = queries(ends, blocks.relation)
    if loss == "softmax":
        # its gradient is zero up to rounding, which Adam would amplify
        bias = bias.detach()
    links = end_count // 2
    # each end's own query, because dropout changes them differently
    answers = torch.cat([ends[links:], ends[:links]])
    true = (query_vectors * answers).sum(1, dtype=full) + bias
    of_blocks = query_vectors.index_select(0, blocks.slot).view(-1, BLOCK, query_vectors.shape[1])
    width = blocks.unknown.shape[1] - blocks.adds_query
    tables = candidates.view(-1, width, candidates.shape[1])
    scores = torch.bmm(of_blocks, tables.index_select(0, blocks.group).mT)
    scores = scores.view(-1, width).to(full)
    if self_score is not None and blocks.adds_query:
        head, tail = blocks.nodes[:end_count].chunk(2)
        true = true + self_score * (head == tail).repeat(2)
        of_itself = (query_vectors * ends).sum(1, dtype=full) + self_score
        scores = torch.cat([scores, of_itself.index_select(0, blocks.slot)[:, None]], dim=1)
    scores = scores + bias.index_select(0, blocks.slot)[:, None]
    total = negative_loss(loss, true.index_select(0, blocks.slot), scores, blocks.unknown) / 2
    if loss != "logistic":  # that of padding is 0, as no candidate counts
        return total
    of_links = F.softplus(-true[:links])
    if blocks.weight is not None:
        of_links = of_links * blocks.weight.to(full)
    return total + of_links.sum()


def negative_loss(loss: LinkLoss, true: Tensor, scores: Tensor, unknown: Tensor) -> Tensor:
    """The part of the loss with negatives. true: [B]; scores, unknown: [B, M]."""
    if loss == "softmax":
        negative = scores.masked_fill(~unknown, float("-inf"))
        return (torch.cat([true[:, None], negative], dim=1).logsumexp(1) - true).sum()
    weight = unknown.to(scores.dtype) / unknown.sum(1, keepdim=True).clamp(min=1)
    return (F.softplus(scores) * weight).sum()


def losses_by_relation(
    sampler: LinkSampler,
    batch: Batch,
    queries_of: Queries,
    vectors: Tensor,
    wanted: Int64,
    links: Int64,
) -> Tensor:
    """The sum over these links (sorted by relation), one relation after the other: for a CPU."""
    graph, loss = sampler.graph, sampler.sampling.loss
    total = vectors.new_zeros((), dtype=accumulation_dtype(vectors))
    kinds, begin = np.unique(graph.kind(links), return_index=True)
    groups = []
    for kind, part in zip(kinds.tolist(), np.split(links, begin[1:]), strict=True):
        sampled = [sampler.negatives(batch, kind, side) for side in (0, 1)]
        groups.append((kind, [*graph.ends(part), *sampled]))
    for (kind, (head, tail, *candidates)), rows in zip(
        groups, _rows_of_groups(vectors, wanted, [nodes for _, nodes in groups]), strict=True
    ):
        left, right, *tables = rows
        (queries, bias, self_score), of_tails = queries_of(left, kind), queries_of(right, kind)[0]
        if not sampler.adds_query(kind):
            self_score = None
        if loss == "softmax":
            # its gradient is zero up to rounding, which Adam would amplify
            bias = bias.detach()
        query_tables, ends = (queries, of_tails), (left, right)
        for side, (nodes, answer) in enumerate(((head, tail), (tail, head))):
            products = query_tables[side][: len(nodes), :] * ends[1 - side][: len(nodes), :]
            true = products.sum(1, dtype=total.dtype) + bias
            if self_score is not None:
                true = true + self_score * torch.from_numpy(head == tail)
            if loss == "logistic" and side == 0:
                total = total + F.softplus(-true).sum()
            scores = (query_tables[side] @ tables[side].T)[: len(nodes), : len(candidates[side])]
            scores = scores.to(total.dtype)
            if self_score is not None:
                products = query_tables[side][: len(nodes), :] * ends[side][: len(nodes), :]
                of_itself = products.sum(1, dtype=total.dtype) + self_score
                scores = torch.cat([scores, of_itself[:, None]], dim=1)
            scores = scores + bias
            unknown = sampler.unknown(kind, side, nodes, answer, candidates[side])
            total = total + negative_loss(loss, true, scores, unknown) / 2
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
        rows = vectors.index_select(0, places(wanted, np.concatenate(nodes)))
        rows = rows.to(autocast_dtype(vectors))
        pieces = iter(torch.split(rows, [len(each) for each in nodes]))
        yield from [[next(pieces) for _ in group] for group in pending]
        pending = []


def _rounded(nodes: Int64) -> Int64:
    return np.pad(nodes, (0, rounded_rows(len(nodes)) - len(nodes)), "edge")


def places(wanted: Int64, nodes: Int64) -> Tensor:
    """The places of nodes among the wanted ones, which are ascending."""
    return torch.from_numpy(np.searchsorted(wanted, nodes))
