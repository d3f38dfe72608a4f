"""Exact ranks of targets in the whole catalog, block by block.

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

import torch
from torch import Tensor

from hasten.ops.ranking.column_blocks import WHOLE, ColumnBlocks, Positions
from hasten.ops.ranking.lists import ListedIds, RankingLists
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
    scorer: Scorer, count: int, lists: RankingLists, *, columns: int | None = None
) -> RankCounts:
    """Count the competitors that score higher than each (query, target) pair, and those that tie.

    scorer: scores of the queries of ``lists`` against catalog rows 0..count-1.
    lists: the targets and the excluded candidates, on the device of the scores. Excluded candidates
    are counted with the others and separately. Other targets of a query compete like any candidate.
    columns: the width of a block; None: the whole catalog where ``column_blocks.WHOLE`` allows.
    With several blocks the host waits for the device at most three times.
    """
    blocks = ColumnBlocks.choose(len(lists), count, columns)
    positions = Positions.build(lists.targets.rows, lists.targets.items, blocks)
    if len(blocks) == 1:
        whole = blocks.scores(scorer, 0)
        ranks = count_ranks(
            scorer, blocks, lists, positions, positions.scores(scorer, whole), whole=whole
        )
    else:
        ranks, tried = None, _listed(scorer, lists.targets, positions)
        if tried is not None:
            ranks = count_ranks(scorer, blocks, lists, positions, tried, check=True)
        if ranks is None:
            ranks = count_ranks(scorer, blocks, lists, positions, positions.scores(scorer, None))
    assert ranks is not None
    return ranks


def _listed(scorer: Scorer, targets: ListedIds, positions: Positions) -> Tensor | None:
    """[S] the scores of the targets by products with their rows alone, if that is less work."""
    width, count = positions.blocks.columns, len(targets.items)
    products = -(-count // width)
    if not (count and isinstance(scorer, ListScorer)) or 2 * products > len(positions.numbers):
        return None
    columns = []
    for start in range(0, count, width):
        items = targets.items[start : start + width]
        # padded to the shape of a block: libraries choose their order of summation by it
        ids = items.repeat(-(-width // len(items)))[:width]
        scores = scorer.listed(ids).to(torch.float32)
        row = targets.rows[start : start + width]
        columns.append(scores[row, torch.arange(len(items), device=scores.device)])
    return torch.cat(columns)


def count_ranks(
    scorer: Scorer,
    blocks: ColumnBlocks,
    lists: RankingLists,
    positions: Positions,
    target_scores: Tensor,
    *,
    whole: Tensor | None = None,
    check: bool = False,
    inside: Tensor | None = None,
) -> RankCounts | None:
    """The counts, given the positions of the targets and their scores [S].

    whole: the scores of the only block. check: return None unless the scores in the blocks are
    ``own`` at the targets. inside: bool [S], the targets among the candidates; None: all.
    """
    count, device = blocks.count, target_scores.device
    one_each = bool((lists.targets.host.lengths == 1).all())
    row = None if one_each else lists.targets.rows
    at_most, below = torch.zeros((2, len(target_scores)), dtype=torch.int64, device=device)
    excluded, apart, taken = lists.excluded, None, []
    if excluded is not None:
        apart = Positions.build(excluded.rows, excluded.items, blocks)
    same = torch.ones((), dtype=torch.bool, device=device) if check else None
    for block in range(len(blocks)):
        scores = blocks.scores(scorer, block) if whole is None else whole
        if same is not None:
            same &= positions.same(target_scores, scores, block)
            if device.type == "cpu" and not same:
                return None
        if apart is not None:
            taken.append(apart.take(scores, block))
        _count(scores, row, target_scores, at_most, below)
    if same is not None and not same:  # on other devices than CPUs it is read once
        return None
    number = ~target_scores.isnan() if inside is None else ~target_scores.isnan() & inside
    at_most -= number.to(torch.int64)  # the target itself, which was counted unless NaN
    others = count - (1 if inside is None else inside.to(torch.int64))
    ranks = RankCounts.of(others - at_most, at_most - below)
    if apart is None or excluded is None or lists.among is None:
        return ranks
    among = lists.among & number
    higher, tied = _apart(excluded, lists.among, among, apart.in_order(taken), row, target_scores)
    return replace(ranks, excluded_higher=higher, excluded_tied=tied)


@torch.no_grad()
def rank_among(
    scorer: Scorer, count: int, candidates: Tensor, *, columns: int | None = None
) -> RankCounts:
    """Rank each query's first candidate among its others.

    candidates: int64 [Q, 1 + C], on the device of the scores; an item listed twice competes twice.
    NaN as in :func:`rank_all`. The candidates alone are scored if the catalog does not fit into
    one block and the scorer can.
    """
    queries, width = candidates.shape
    blocks = ColumnBlocks.choose(queries, count, columns)
    if len(blocks) > 1 and isinstance(scorer, ListScorer):
        scores = scorer.pairs(candidates).to(torch.float32)
    else:
        row = torch.arange(queries, device=candidates.device)[:, None].expand(-1, width)
        whole = blocks.scores(scorer, 0) if len(blocks) == 1 else None
        positions = Positions.build(row.reshape(-1), candidates.reshape(-1), blocks)
        scores = positions.scores(scorer, whole).view(queries, width)
    return rank_scores(scores)


def rank_scores(scores: Tensor) -> RankCounts:
    """Rank the first of each query's candidates among its others; scores: [Q, 1 + C]."""
    target, others = scores[:, :1], scores[:, 1:]
    at_most, below = (others <= target).sum(1), (others < target).sum(1)
    return RankCounts.of(others.shape[1] - at_most, at_most - below)


def _apart(
    excluded: ListedIds,
    among: Tensor,
    counted: Tensor,
    scores: Tensor,
    row: Tensor | None,
    target_scores: Tensor,
) -> tuple[Tensor, Tensor]:
    """How many excluded candidates score higher than each target, and how many the same [S].

    among: bool [S], whether the target is one of them itself; counted: whether it is and its score
    is a number; scores: [n] of the excluded
    candidates; row, own: as in :func:`_count`.
    """
    rows, most = excluded.rows, int(excluded.host.lengths.max())
    table = scores.new_full((len(excluded), most), torch.nan)  # NaN: no candidate
    column = torch.arange(len(rows), device=rows.device) - excluded.offsets[rows]
    table[rows, column] = scores
    at_most, below = torch.zeros(
        (2, len(target_scores)), dtype=torch.int64, device=target_scores.device
    )
    _count(table, row, target_scores, at_most, below)
    others = excluded.lengths
    others = (others if row is None else others[row]) - among.to(torch.int64)
    at_most -= counted.to(torch.int64)
    return others - at_most, at_most - below


def _count(
    scores: Tensor, row: Tensor | None, target_scores: Tensor, at_most: Tensor, below: Tensor
) -> None:
    """For every pair, add the numbers of scores in its row that are at most, and below, its own.

    row: int64 [S], the row of each pair; None: one pair per row. On a CPU comparisons are written
    as float32 0 and 1, whose sums are exact up to 2^24 and several times faster than those of
    booleans, which take less memory elsewhere.
    """
    pairs, width, on_cpu = len(target_scores), scores.shape[1], scores.device.type == "cpu"
    assert width <= 2**24
    chunk = max(1, (_CHUNK if on_cpu else WHOLE) // width)
    shape = min(chunk, pairs), width
    flags = scores.new_empty(shape, dtype=torch.float32 if on_cpu else torch.bool)
    taken = None if row is None else scores.new_empty(shape)
    for start in range(0, pairs, chunk):
        stop = min(start + chunk, pairs)
        flag, limit = flags[: stop - start], target_scores[start:stop, None]
        if row is None or taken is None:
            part = scores[start:stop]
        else:
            part = torch.index_select(scores, 0, row[start:stop], out=taken[: stop - start])
        at_most[start:stop].add_(torch.le(part, limit, out=flag).sum(1).to(torch.int64))
        below[start:stop].add_(torch.lt(part, limit, out=flag).sum(1).to(torch.int64))
