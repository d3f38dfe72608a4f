"""The inputs of evaluation tiles, on the device of the model.

On a CPU it is made tile by tile. For other devices it is made for many tiles at once and moved by
one copy, so that the excluded candidates are there when a tile is ranked, as a CSR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_positions
from hasten.evaluation.candidate_ranges import Ranges, RangeScorer, SubsetScorer
from hasten.evaluation.completion import CompletionTask
from hasten.evaluation.protocols import AnyTask, RankingTask
from hasten.evaluation.query_tiles import Tile
from hasten.ops.ranking.candidate_shard import CandidateShard
from hasten.ops.ranking.lists import RankingLists
from hasten.ops.ranking.rank_all import RankCounts, rank_all, rank_among
from hasten.ops.ranking.scorer import Scorer

#: most excluded candidates on a device at a time, unless a tile has more (256 MiB)
_MAX_EXCLUDED = 2**25


@dataclass(frozen=True, eq=False)
class TileInputs:
    """Queries in the order of their tiles, with padding.

    numbers: int64 [Q], of the queries in the task. target_numbers: int64 [S], of the targets in the
    task; those of the padding, which come last, are left out. items: the size of the catalog.
    lists: if all items are ranked; candidates: int64 [Q, 1 + C], if they are sampled. others:
    bool [N], candidates of no query.
    """

    numbers: Int64
    target_numbers: Tensor
    items: int
    lists: RankingLists | None = None
    candidates: Tensor | None = None
    ranges: Ranges | None = None
    others: Tensor | None = None

    @classmethod
    def of(cls, task: AnyTask, tiles: Sequence[Tile]) -> TileInputs:
        """Of these tiles, on the host."""
        rows = np.concatenate([tile.padded_rows for tile in tiles])
        count = sum(tile.count for tile in tiles)  # only the last tile has padding
        targets = torch.from_numpy(ragged_positions(task.targets.offsets, rows[:count])[0])
        if task.candidates is not None:  # column 0 is the target
            candidates = task.candidates[rows].astype(np.int64, copy=False)
            return cls(rows, targets, task.item_count, candidates=torch.from_numpy(candidates))
        excluded = None if task.excluded is None else task.excluded.take(rows)
        lists = RankingLists.of(task.targets.take(rows), excluded)
        ranges = others = None
        if isinstance(task, CompletionTask) and task.range_start is not None:
            assert task.range_stop is not None
            ranges = Ranges.of(task.range_start[rows], task.range_stop[rows])
        if isinstance(task, RankingTask) and task.subset is not None:
            others = torch.from_numpy(~task.subset)
        return cls(rows, targets, task.item_count, lists, ranges=ranges, others=others)

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, start: int, stop: int) -> TileInputs:
        """Those of the queries from start to stop - 1; without their target numbers."""
        return TileInputs(
            self.numbers[start:stop],
            self.target_numbers[:0],
            self.items,
            None if self.lists is None else self.lists.part(start, stop),
            None if self.candidates is None else self.candidates[start:stop],
            None if self.ranges is None else self.ranges.part(start, stop),
            self.others,
        )

    def rank(self, scorer: Scorer, columns: int, part: CandidateShard | None = None) -> RankCounts:
        """The counts of the targets. columns: the width of a block; part: the candidates."""
        if self.candidates is not None:
            if part is not None:
                return part.rank_among(scorer, self.candidates)
            return rank_among(scorer, self.items, self.candidates, columns=columns)
        assert self.lists is not None
        if self.ranges is not None:
            scorer = RangeScorer(scorer, self.ranges)
        if self.others is not None:
            scorer = SubsetScorer(scorer, self.others)
        if part is not None:
            return part.rank_all(scorer, self.lists, columns=columns)
        return rank_all(scorer, self.items, self.lists, columns=columns)


def tiles_by_transfer(
    task: AnyTask, tiles: Sequence[Tile], device: torch.device
) -> Iterator[list[Tile]]:
    """Groups of tiles whose inputs are made and copied to the device together."""
    if device.type == "cpu":
        yield from ([tile] for tile in tiles)
        return
    lengths = np.zeros(len(task.queries)) if task.excluded is None else task.excluded.lengths
    listed = np.cumsum([lengths[tile.padded_rows].sum() for tile in tiles])
    for _, group in groupby(zip(listed // _MAX_EXCLUDED, tiles, strict=True), lambda pair: pair[0]):
        yield [tile for _, tile in group]
