"""Exact ranks of targets among the whole catalogue, by counting, in little memory.

A target's rank follows from two counts: how many admissible candidates score higher, and how many
score the same. Both come from comparisons of float32 scores. The target's own score is read from
the same block as those of its competitors, so equal scores compare as equal.

Cost for Q queries, N candidates, width D: if Q·N is at most ``column_blocks.WHOLE``, scores are
computed once, 2·Q·N·D operations. Above that, blocks of ``column_blocks.COLUMNS`` columns are
computed once for the counts, and blocks that hold a target once more before, for the targets'
scores: 2·Q·N·D·(1 + f), where f is the share of blocks with a target (256 targets spread evenly
over 10^6 candidates: 0.41).

NaN counts against the model: a target that scores NaN ranks behind every candidate, and a candidate
that scores NaN counts as higher than any other target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.column_blocks import WHOLE, ColumnBlocks, Positions
from hasten.ops.ranking.scorer import Scorer

#: scores compared at a time on the CPU, so that both comparisons find them in the cache (1 MiB)
_CHUNK = 2**18


@dataclass(frozen=True, eq=False)
class RankCounts:
    """How many other candidates score higher than a target, and how many the same.

    higher, tied: int64 [S], in the order of the targets. excluded_higher, excluded_tied: int64
    [S], how many of these are excluded candidates.
    """

    higher: Tensor
    tied: Tensor
    excluded_higher: Tensor
    excluded_tied: Tensor

    @classmethod
    def of(cls, higher: Tensor, tied: Tensor) -> RankCounts:
        """Counts without excluded candidates."""
        return cls(higher, tied, torch.zeros_like(higher), torch.zeros_like(tied))

    def cpu(self) -> RankCounts:
        """The counts on the host: one copy of all four."""
        return RankCounts(*torch.stack(list(vars(self).values())).cpu())

    def masked(self) -> RankCounts:
        """The counts without the excluded candidates."""
        return RankCounts.of(self.higher - self.excluded_higher, self.tied - self.excluded_tied)


@torch.no_grad()
def rank_all(
    scorer: Scorer,
    queries: int,
    count: int,
    targets: CSR,
    excluded: CSR | None = None,
    *,
    columns: int | None = None,
) -> RankCounts:
    """Count the competitors that score higher than each (query, target) pair, and those that tie.

    scorer: scores of ``queries`` queries against catalogue rows 0..count-1.
    targets, excluded: one row per query. Excluded candidates are counted with the others and
    separately. Other targets of a query compete like any candidate.
    columns: the width of a block; None: the whole catalogue where ``column_blocks.WHOLE`` allows.
    """
    assert len(targets) == queries
    assert excluded is None or len(excluded) == queries
    blocks = ColumnBlocks.choose(queries, count, columns)
    pair_row = targets.rows
    whole = blocks.scores(scorer, 0) if len(blocks) == 1 else None
    own = Positions.build(pair_row, targets.items, blocks).scores(scorer, whole)
    one_each = bool((targets.lengths == 1).all())
    row = None if one_each else torch.from_numpy(pair_row).to(own.device)
    at_most = torch.zeros(len(pair_row), dtype=torch.int64, device=own.device)
    below = torch.zeros_like(at_most)
    excluded = None if excluded is None or not len(excluded.items) else excluded.distinct()
    apart, found = None, []
    if excluded is not None:
        apart = Positions.build(excluded.rows, excluded.items, blocks)
    for number in range(len(blocks)):
        scores = blocks.scores(scorer, number) if whole is None else whole
        if apart is not None:
            found.append(apart.take(scores, number))
        _count(scores, row, own, at_most, below)
    at_most -= (~own.isnan()).to(torch.int64)  # the target itself, which was counted unless NaN
    ranks = RankCounts.of(count - 1 - at_most, at_most - below)
    if apart is None or excluded is None:
        return ranks
    among = torch.from_numpy(targets.listed_in(excluded)).to(own.device)
    higher, same = _apart(excluded, among, apart.in_order(found), row, own)
    return replace(ranks, excluded_higher=higher, excluded_tied=same)


@torch.no_grad()
def rank_among(
    scorer: Scorer, count: int, candidates: Int64, *, columns: int | None = None
) -> RankCounts:
    """Rank each query's first candidate among its others.

    candidates: int64 [Q, 1 + C]; an item listed twice competes twice. NaN as in :func:`rank_all`.
    """
    queries, width = candidates.shape
    blocks = ColumnBlocks.choose(queries, count, columns)
    row = np.repeat(np.arange(queries, dtype=np.int64), width)
    whole = blocks.scores(scorer, 0) if len(blocks) == 1 else None
    scores = Positions.build(row, candidates.reshape(-1), blocks).scores(scorer, whole)
    scores = scores.view(queries, width)
    own, others = scores[:, :1], scores[:, 1:]
    at_most, below = (others <= own).sum(1), (others < own).sum(1)
    return RankCounts.of((width - 1) - at_most, at_most - below)


def _apart(
    excluded: CSR, among: Tensor, scores: Tensor, row: Tensor | None, own: Tensor
) -> tuple[Tensor, Tensor]:
    """How many excluded candidates score higher than each target, and how many the same [S].

    among: bool [S], whether the target is one of them itself; scores: [n] of the excluded
    candidates; row, own: as in :func:`_count`.
    """
    lengths = excluded.lengths
    table = scores.new_full((len(excluded), int(lengths.max())), torch.nan)  # NaN: no candidate
    column = np.arange(len(excluded.items)) - np.repeat(excluded.offsets[:-1], lengths)
    place = torch.from_numpy(excluded.rows * table.shape[1] + column)
    table.view(-1)[place.to(scores.device)] = scores
    at_most = torch.zeros(len(own), dtype=torch.int64, device=own.device)
    below = torch.zeros_like(at_most)
    _count(table, row, own, at_most, below)
    others = torch.from_numpy(lengths).to(own.device)
    others = (others if row is None else others[row]) - among.to(torch.int64)
    at_most -= (among & ~own.isnan()).to(torch.int64)
    return others - at_most, at_most - below


def _count(scores: Tensor, row: Tensor | None, own: Tensor, at_most: Tensor, below: Tensor) -> None:
    """For every pair, add the numbers of scores in its row that are at most, and below, its own.

    row: int64 [S], the row of each pair; None: one pair per row. Comparisons are written as float32
    0 and 1, whose sums are exact up to 2^24 and several times faster than those of booleans.
    """
    pairs, width = len(own), scores.shape[1]
    assert width <= 2**24
    chunk = max(1, (_CHUNK if scores.device.type == "cpu" else WHOLE) // width)
    flags = scores.new_empty((min(chunk, pairs), width))
    taken = None if row is None else torch.empty_like(flags)
    for start in range(0, pairs, chunk):
        stop = min(start + chunk, pairs)
        flag, limit = flags[: stop - start], own[start:stop, None]
        if row is None or taken is None:
            part = scores[start:stop]
        else:
            part = torch.index_select(scores, 0, row[start:stop], out=taken[: stop - start])
        at_most[start:stop] += torch.le(part, limit, out=flag).sum(1).to(torch.int64)
        below[start:stop] += torch.lt(part, limit, out=flag).sum(1).to(torch.int64)
