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

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.column_blocks import WHOLE, ColumnBlocks, Positions
from hasten.ops.ranking.scorer import Scorer

#: scores compared at a time on the CPU, so that both comparisons find them in the cache (1 MiB)
_CHUNK = 2**18


@dataclass(frozen=True, eq=False)
class RankCounts:
    """How many admissible candidates score higher than each of S targets, and how many the same.

    higher, tied: int64 [S], in the order of the targets.
    """

    higher: Tensor
    tied: Tensor


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
    targets, excluded: one row per query. Excluded items compete with no target; an excluded target
    is still ranked. Other targets of a query compete like any candidate.
    columns: the width of a block; None: the whole catalogue if ``column_blocks.WHOLE`` allows.
    """
    assert len(targets) == queries
    assert excluded is None or len(excluded) == queries
    blocks = ColumnBlocks.choose(queries, count, columns)
    pair_row = targets.rows
    whole = blocks.scores(scorer, 0) if len(blocks) == 1 else None
    own = Positions.build(pair_row, targets.items, blocks).scores(scorer, whole)
    device = own.device
    hidden, target_hidden = _hidden(targets, excluded, blocks)
    at_most = torch.zeros(len(pair_row), dtype=torch.int64, device=device)
    below = torch.zeros_like(at_most)
    one_each = bool((targets.lengths == 1).all())
    row = None if one_each else torch.from_numpy(pair_row).to(device)
    for number in range(len(blocks)):
        scores = blocks.scores(scorer, number) if whole is None else whole
        if hidden is not None:
            # a NaN is neither at most nor below anything
            hidden.fill(scores, number, torch.nan)
        _count(scores, row, own, at_most, below)
    competitors = torch.full_like(at_most, count)
    if hidden is not None:
        competitors -= torch.from_numpy(hidden.per_row(queries)[pair_row]).to(device)
    # the target itself is a candidate unless excluded, and was counted unless NaN
    listed = ~torch.from_numpy(target_hidden).to(device)
    competitors -= listed.to(torch.int64)
    at_most -= (listed & ~own.isnan()).to(torch.int64)
    return RankCounts(higher=competitors - at_most, tied=at_most - below)


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
    return RankCounts(higher=(width - 1) - at_most, tied=at_most - below)


def _hidden(
    targets: CSR, excluded: CSR | None, blocks: ColumnBlocks
) -> tuple[Positions | None, NDArray[np.bool_]]:
    """Positions of the excluded candidates, and which of the targets are excluded [S]."""
    if excluded is None or not len(excluded.items):
        return None, np.zeros(len(targets.items), np.bool_)
    excluded = excluded.distinct()
    row = excluded.rows
    keys = row * blocks.count + excluded.items
    wanted = targets.rows * blocks.count + targets.items
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return Positions.build(row, excluded.items, blocks), keys[place] == wanted


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
