"""Exact ranks of targets among the whole catalogue, by counting, in little memory.

A target's rank follows from two counts: how many admissible candidates score higher, and how many
score the same. Both come from comparisons of float32 scores. The target's own score is that of its
block, as those of its competitors are, so equal scores compare as equal.

Cost for Q queries, N candidates, width D: if Q·N is at most ``column_blocks.WHOLE``, scores are
computed once, 2·Q·N·D operations. Above that, blocks of ``column_blocks.COLUMNS`` columns are
computed. The targets' own scores are needed before: those of a product with the targets' rows
alone, of the same shape as a block, are tried first, and compared bit by bit with those of their
blocks. If one differs, or the scorer has no such product (``ListScorer``), blocks that
hold a target are computed once more before the counts: 2·Q·N·D·(1 + f), where f is the share of
blocks with a target (256 targets spread evenly over 10^6 candidates: 0.41).

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
from hasten.ops.ranking.scorer import ListScorer, Scorer

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
    at = Positions.build(targets.rows, targets.items, blocks)
    if len(blocks) == 1:
        whole = blocks.scores(scorer, 0)
        ranks = _ranks(scorer, blocks, targets, excluded, at.scores(scorer, whole), whole=whole)
    else:
        ranks, tried = None, _listed(scorer, targets, at)
        if tried is not None:
            ranks = _ranks(scorer, blocks, targets, excluded, tried, check=at)
        if ranks is None:
            ranks = _ranks(scorer, blocks, targets, excluded, at.scores(scorer, None))
    assert ranks is not None
    return ranks


def _listed(scorer: Scorer, targets: CSR, at: Positions) -> Tensor | None:
    """[S] the scores of the targets by products with their rows alone, if that is less work."""
    width, count = at.blocks.columns, len(targets.items)
    products = -(-count // width)
    if not isinstance(scorer, ListScorer) or 2 * products > np.count_nonzero(np.diff(at.starts)):
        return None
    found = []
    for start in range(0, count, width):
        items = targets.items[start : start + width]
        row = torch.from_numpy(targets.rows[start : start + width])
        # padded to the shape of a block: libraries choose their order of summation by it
        ids = torch.from_numpy(np.resize(items, width))
        scores = scorer.listed(ids.to(scorer.device)).to(torch.float32)
        found.append(scores[row.to(scores.device), torch.arange(len(items), device=scores.device)])
    return torch.cat(found)


def _ranks(
    scorer: Scorer,
    blocks: ColumnBlocks,
    targets: CSR,
    excluded: CSR | None,
    own: Tensor,
    *,
    whole: Tensor | None = None,
    check: Positions | None = None,
) -> RankCounts | None:
    """The counts, given the targets' own scores [S].

    whole: the scores of the only block. check: the positions of the targets, whose scores in the
    blocks must be ``own``; None if they are not.
    """
    count, pair_row = blocks.count, targets.rows
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
        if check is not None and not check.are(own, scores, number):
            return None
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
    The candidates alone are scored if the catalogue does not fit into one block and the scorer can.
    """
    queries, width = candidates.shape
    blocks = ColumnBlocks.choose(queries, count, columns)
    if len(blocks) > 1 and isinstance(scorer, ListScorer):
        ids = torch.from_numpy(candidates.astype(np.int64, copy=False)).to(scorer.device)
        scores = scorer.pairs(ids).to(torch.float32)
    else:
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
