"""Ranks among the candidates of one process, which add up over processes.

The score of a target comes from the process that holds it. A process then counts those of its own
candidates that score higher, and those that tie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.ops.ranking.column_blocks import ColumnBlocks, Positions
from hasten.ops.ranking.lists import ListedIds, RankingLists
from hasten.ops.ranking.rank_all import RankCounts, count_ranks, rank_scores
from hasten.ops.ranking.scorer import ListScorer, Scorer
from hasten.ops.transfer import to_device


@dataclass(frozen=True)
class _Shifted:
    """A scorer whose candidate 0 is candidate ``first`` of another."""

    scorer: Scorer
    first: int

    def block(self, start: int, stop: int) -> Tensor:
        return self.scorer.block(start + self.first, stop + self.first)


@dataclass(frozen=True)
class CandidateShard:
    """The candidates ``first`` ... ``stop - 1``, which this process holds.

    sum_: sums a tensor over all processes, in place. All processes rank the same queries in the
    same order.
    """

    first: int
    stop: int
    sum_: Callable[[Tensor], Tensor]

    @torch.no_grad()
    def rank_all(
        self, scorer: Scorer, lists: RankingLists, *, columns: int | None = None
    ) -> RankCounts:
        """What this part adds to the counts of :func:`~hasten.ops.ranking.rank_all.rank_all`.

        scorer: scores candidates of this part.
        """
        targets, part = lists.targets, _Shifted(scorer, self.first)
        inside = self._holds(targets.items)
        blocks = ColumnBlocks.choose(len(lists), self.stop - self.first, columns)
        positions = Positions.build(
            targets.rows[inside], targets.items[inside] - self.first, blocks
        )
        whole = blocks.scores(part, 0) if len(blocks) == 1 else None
        part_scores = positions.scores(part, whole)
        target_scores = part_scores.new_zeros(len(targets.items))
        target_scores[inside] = part_scores
        self.sum_(target_scores)
        ranks = count_ranks(
            part,
            blocks,
            self._excluded(lists, inside),
            positions,
            target_scores,
            whole=whole,
            inside=inside,
        )
        assert ranks is not None
        return ranks

    @torch.no_grad()
    def rank_among(self, scorer: Scorer, candidates: Tensor) -> RankCounts:
        """As :func:`~hasten.ops.ranking.rank_all.rank_among`, counted by the first process only.

        All processes score the candidates, because each needs the others' rows for it.
        """
        assert isinstance(scorer, ListScorer), "sampled candidates are scored one by one"
        ranks = rank_scores(scorer.pairs(candidates).to(torch.float32))
        if self.first > 0:
            for counts in vars(ranks).values():
                counts.zero_()
        return ranks

    def _holds(self, items: Tensor) -> Tensor:
        return (items >= self.first) & (items < self.stop)

    def _excluded(self, lists: RankingLists, inside: Tensor) -> RankingLists:
        """The lists with the excluded candidates of this part, counted from its first."""
        if lists.excluded is None or lists.among is None:
            return lists
        excluded_ids = lists.excluded.host
        in_part = excluded_ids.keep(
            (excluded_ids.items >= self.first) & (excluded_ids.items < self.stop)
        )
        if not len(in_part.items):
            return RankingLists(lists.targets)
        excluded = ListedIds.of(type(in_part)(in_part.offsets, in_part.items - self.first))
        return RankingLists(lists.targets, to_device(excluded, inside.device), lists.among & inside)
