"""The link loss: of all types of candidates at once, with few kernel launches, or one by one.

Each link is two queries, one for its tail and one for its head. Queries whose answers are of the
same type of nodes share their candidates. At once, the queries are arranged in blocks of
:data:`BLOCK` slots of one type, and the candidates in lists of the same length: the scores are one
batched product over blocks. Slots and candidates beyond those of a type are marked as known, which
adds nothing to the loss. One by one, for a CPU, each type is one product.
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
    """L links in B blocks of slots, and the C candidates of each of G types of nodes.

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
        count, ends = len(links), graph.ends(links)
        of_kinds = [sampler.candidate_types(kinds, side) for side in (0, 1)]
        types = np.unique(of_kinds)
        lists = [sampler.negatives(batch, each) for each in types.tolist()]
        width = max([most, *map(len, lists)])
        candidates = np.full((len(lists), width), wanted[0] if len(wanted) else 0)
        of_types = sum(
            np.bincount(np.searchsorted(types, of), slots, len(types)) for of in of_kinds
        )
        blocks = -(-np.asarray(of_types, np.int64) // BLOCK)
        group = np.repeat(np.arange(len(types)), blocks)
        slot = np.zeros(len(group) * BLOCK, np.int64)
        adds_query = [sampler.adds_query(int(kind)) for kind in kinds]
        unknown = np.zeros((len(slot), width + any(adds_query)), bool)
        starts = BLOCK * (np.cumsum(blocks) - blocks)
        for number, negatives in enumerate(lists):
            first, candidates[number, : len(negatives)] = int(starts[number]), negatives
            for side, kind in zip(*np.nonzero(np.equal(of_kinds, types[number])), strict=True):
                link_rows = np.arange(begin[kind], begin[kind] + sizes[kind])
                rows = slice(first, first + len(link_rows))
                slot[rows] = link_rows + side * count
                given, answer = (each[link_rows] for each in (ends[side], ends[1 - side]))
                known = sampler.unknown(int(kinds[kind]), side, given, answer, negatives)
                unknown[rows, : len(negatives)] = known[:, : len(negatives)].numpy()
                if adds_query[kind]:
                    unknown[rows, -1] = known[:, -1].numpy()
                first += int(slots[kind])
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
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The sum over the links, and the vectors [2L, D] of their ends, heads first."""
    full, end_count = accumulation_dtype(vectors), len(blocks.relation)
    rows = vectors.index_select(0, blocks.nodes)
    of_ends, candidates = torch.split(rows, [end_count, len(rows) - end_count])
    lower = autocast_dtype(vectors)
    ends, candidates = of_ends.to(lower), candidates.to(lower)
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
    own = true.index_select(0, blocks.slot)
    total = negative_loss(loss, own, scores, blocks.unknown, smoothing) / 2
    if loss != "logistic":  # that of padding is 0, as no candidate counts
        return total, of_ends
    of_links = F.softplus(-true[:links])
    if blocks.weight is not None:
        of_links = of_links * blocks.weight.to(full)
    return total + of_links.sum(), of_ends


def negative_loss(
    loss: LinkLoss, true: Tensor, scores: Tensor, unknown: Tensor, smoothing: float = 0.0
) -> Tensor:
    """The part of the loss with negatives. true: [B]; scores, unknown: [B, M].

    smoothing: of the softmax, the share of the target that all its candidates have in equal parts.
    """
    if loss == "softmax":
        negative = scores.masked_fill(~unknown, float("-inf"))
        total = torch.cat([true[:, None], negative], dim=1).logsumexp(1)
        if smoothing:
            mean = (scores.masked_fill(~unknown, 0).sum(1) + true) / (unknown.sum(1) + 1)
            true = torch.lerp(true, mean, smoothing)
        return (total - true).sum()
    weight = unknown.to(scores.dtype) / unknown.sum(1, keepdim=True).clamp(min=1)
    return (F.softplus(scores) * weight).sum()


def losses_by_type(
    sampler: LinkSampler,
    batch: Batch,
    queries_of: Queries,
    vectors: Tensor,
    wanted: Int64,
    links: Int64,
) -> tuple[Tensor, Tensor]:
    """:func:`link_loss` of links sorted by relation, one type of candidates after the other."""
    loss, smoothing = sampler.sampling.loss, sampler.sampling.smoothing
    count, full = len(links), accumulation_dtype(vectors)
    if not count:
        return vectors.new_zeros((), dtype=full), vectors.new_empty((0, vectors.shape[1]))
    relation, ends = np.tile(sampler.graph.kind(links), 2), sampler.graph.ends(links)
    groups = list(_groups_of_queries(sampler, batch, relation, ends))
    # under autocast products should have few shapes (see rounded_rows): the last row is repeated
    shaped = _rounded if pads_tokens(vectors.device) else np.asarray
    lists = [shaped(each.candidates) for each in groups]
    # a single gather: each would cost a gradient of all vectors
    rows = vectors.index_select(0, places(wanted, np.concatenate([*ends, *lists])))
    of_ends, *tables = torch.split(rows, [2 * count, *map(len, lists)])
    lower = autocast_dtype(vectors)
    given = of_ends.to(lower)
    answers = torch.cat([given[count:], given[:count]])
    queries, bias, self_score = queries_of(given, torch.from_numpy(relation))
    true = (queries * answers).sum(1, dtype=full)
    if loss == "logistic":  # a softmax is the same without
        true = true + bias
    of_itself = None
    if self_score is not None and any(each.adds_query for each in groups):
        head, tail = map(torch.from_numpy, ends)
        true = true + self_score * (head == tail).repeat(2)
        of_itself = (queries * given).sum(1, dtype=full) + self_score
    total = F.softplus(-true[:count]).sum() if loss == "logistic" else true.new_zeros(())
    for group, table in zip(groups, tables, strict=True):
        members = torch.from_numpy(group.members)
        of_group = queries.index_select(0, torch.from_numpy(shaped(group.members)))
        scores = (of_group @ table.to(lower).T)[: len(members), : len(group.candidates)].to(full)
        if group.adds_query:
            assert of_itself is not None
            scores = torch.cat([scores, of_itself.index_select(0, members)[:, None]], dim=1)
        if loss == "logistic":
            scores = scores + bias.index_select(0, members)[:, None]
        own = true.index_select(0, members)
        total = total + negative_loss(loss, own, scores, group.unknown, smoothing) / 2
    return total, of_ends


@dataclass(frozen=True, eq=False)
class _GroupOfQueries:
    """Queries with the same candidates. members: int64 [B], which of the queries they are.

    candidates: int64 [M]; unknown: bool [B, M], or [B, M + 1] if adds_query (:class:`LinkBlocks`).
    """

    members: Int64
    candidates: Int64
    unknown: Tensor
    adds_query: bool


def _groups_of_queries(
    sampler: LinkSampler, batch: Batch, relation: Int64, ends: Sequence[Int64]
) -> Iterator[_GroupOfQueries]:
    """The queries by the type of their answers. relation: int64 [2L], of heads, then of tails."""
    count = len(relation) // 2
    kinds, begin = np.unique(relation[:count], return_index=True)
    spans = np.split(np.arange(count), begin[1:])
    of_kinds = [sampler.candidate_types(kinds, side) for side in (0, 1)]
    for each in np.unique(of_kinds):
        candidates, members, parts = sampler.negatives(batch, int(each)), [], []
        pairs = np.argwhere(np.equal(of_kinds, each)).tolist()
        adds_query = any(sampler.adds_query(int(kinds[number])) for _, number in pairs)
        for side, number in pairs:
            of_links, kind = spans[number], int(kinds[number])
            given, answer = ends[side][of_links], ends[1 - side][of_links]
            unknown = sampler.unknown(kind, side, given, answer, candidates)
            parts.append(F.pad(unknown, (0, len(candidates) + adds_query - unknown.shape[1])))
            members.append(of_links + side * count)
        yield _GroupOfQueries(np.concatenate(members), candidates, torch.cat(parts), adds_query)


def _rounded(nodes: Int64) -> Int64:
    return np.pad(nodes, (0, rounded_rows(len(nodes)) - len(nodes)), "edge")


def places(wanted: Int64, nodes: Int64) -> Tensor:
    """The places of nodes among the wanted ones, which are ascending."""
    return torch.from_numpy(np.searchsorted(wanted, nodes))
