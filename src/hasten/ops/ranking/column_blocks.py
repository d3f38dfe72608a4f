"""Column blocks of a score matrix, and positions in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.ops.ranking.scorer import Scorer

#: most scores held in one block: 64 MiB of float32, 65,536 candidates for 256 queries
WHOLE = 2**24
#: columns of a block if the scores of all candidates exceed ``WHOLE``
COLUMNS = 2048


@dataclass(frozen=True)
class ColumnBlocks:
    """The catalogue 0..count-1 in blocks of ``columns`` columns; the last one may be narrower."""

    count: int
    columns: int

    @classmethod
    def choose(
        cls, queries: int, count: int, columns: int | None, otherwise: int | None = None
    ) -> ColumnBlocks:
        """Blocks of this width; None: one block if ``WHOLE`` allows it, otherwise ``otherwise``."""
        assert count > 0
        assert columns is None or columns > 0
        if columns is None:
            columns = count if queries * count <= WHOLE else otherwise or COLUMNS
        return cls(count, min(columns, count))

    def __len__(self) -> int:
        return (self.count + self.columns - 1) // self.columns

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(start, stop) of each block."""
        for start in range(0, self.count, self.columns):
            yield start, min(start + self.columns, self.count)

    def scores(self, scorer: Scorer, number: int) -> Tensor:
        """[Q, columns] the scores of one block: float32, contiguous."""
        start = number * self.columns
        stop = min(start + self.columns, self.count)
        return scorer.block(start, stop).to(torch.float32).contiguous()


@dataclass(frozen=True, eq=False)
class Positions:
    """Positions (row, item) in a score matrix, sorted by block.

    row, column (within its block), order (index in the caller's list): int64 [n];
    starts: int64 [blocks + 1], the first position of each block.
    """

    row: Int64
    column: Int64
    order: Int64
    starts: Int64
    blocks: ColumnBlocks

    @classmethod
    def build(cls, row: Int64, item: Int64, blocks: ColumnBlocks) -> Positions:
        if len(blocks) == 1:
            order = np.arange(len(item), dtype=np.int64)
            return cls(row, item, order, np.array([0, len(item)], np.int64), blocks)
        block = item // blocks.columns
        order = np.argsort(block, kind="stable")
        starts = np.searchsorted(block[order], np.arange(len(blocks) + 1))
        column = item - block * blocks.columns
        return cls(row[order], column[order], order, starts, blocks)

    def per_row(self, rows: int) -> Int64:
        """The number of positions in each row [rows]."""
        return np.bincount(self.row, minlength=rows)

    def fill(self, scores: Tensor, number: int, value: float) -> None:
        """Overwrite the scores of one block at the positions."""
        if self.starts[number + 1] > self.starts[number]:
            scores.view(-1).index_fill_(0, self._flat(scores, number), value)

    def scores(self, scorer: Scorer, whole: Tensor | None) -> Tensor:
        """[n] the scores at the positions, in the caller's order; only their blocks are computed.

        whole: the scores of the only block, if already computed.
        """
        if whole is not None:
            return self.take(whole, 0)
        numbers = np.flatnonzero(np.diff(self.starts)).tolist() or [0]
        return self.in_order(
            [self.take(self.blocks.scores(scorer, number), number) for number in numbers]
        )

    def take(self, scores: Tensor, number: int) -> Tensor:
        """The scores at the positions of one block, in the order of the blocks."""
        return scores.view(-1)[self._flat(scores, number)]

    def are(self, values: Tensor, scores: Tensor, number: int) -> bool:
        """Whether the scores at the positions of one block are these values [n] of all of them."""
        part = slice(self.starts[number], self.starts[number + 1])
        order = torch.from_numpy(self.order[part]).to(values.device)
        return torch.equal(values[order], self.take(scores, number))

    def in_order(self, found: Sequence[Tensor]) -> Tensor:
        """[n] what ``take`` found in all blocks, in the caller's order."""
        values = torch.cat(list(found))
        result = torch.empty_like(values)
        result[torch.from_numpy(self.order).to(values.device)] = values
        return result

    def _flat(self, scores: Tensor, number: int) -> Tensor:
        part = slice(self.starts[number], self.starts[number + 1])
        flat = self.row[part] * scores.shape[1] + self.column[part]
        return torch.from_numpy(flat).to(scores.device)
