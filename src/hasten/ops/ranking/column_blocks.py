"""Column blocks of a score matrix, and positions in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.ops.ranking.scorer import Scorer

#: most scores held in one block: 64 MiB of float32, 65,536 candidates for 256 queries
WHOLE = 2**24
#: columns of a block if the scores of all candidates exceed ``WHOLE``
COLUMNS = 2048


@dataclass(frozen=True)
class ColumnBlocks:
    """The catalog 0..count-1 in blocks of ``columns`` columns; the last one may be narrower."""

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
    """Positions (row, item) in a score matrix, sorted by block; on the device of the scores.

    row, column (within its block): int64 [n]; order: int64 [n] the index in the caller's list, None
    for one block; starts: [blocks + 1], the first position of each block.
    """

    row: Tensor
    column: Tensor
    order: Tensor | None
    starts: list[int]
    blocks: ColumnBlocks

    @classmethod
    def build(cls, row: Tensor, item: Tensor, blocks: ColumnBlocks) -> Positions:
        """With several blocks the host waits for the device once, for ``starts``."""
        if len(blocks) == 1:
            return cls(row, item, None, [0, len(item)], blocks)
        block = item // blocks.columns
        order = torch.argsort(block, stable=True)
        numbers = torch.arange(len(blocks) + 1, device=block.device)
        starts = torch.searchsorted(block[order], numbers).tolist()
        return cls(row[order], (item - block * blocks.columns)[order], order, starts, blocks)

    def fill(self, scores: Tensor, number: int, value: float) -> None:
        """Overwrite the scores of one block at the positions."""
        part = slice(self.starts[number], self.starts[number + 1])
        if part.stop > part.start:
            flat = self.row[part] * scores.shape[1] + self.column[part]
            scores.view(-1).index_fill_(0, flat, value)

    def scores(self, scorer: Scorer, whole: Tensor | None) -> Tensor:
        """[n] the scores at the positions, in the caller's order; only their blocks are computed.

        whole: the scores of the only block, if already computed.
        """
        if whole is not None:
            return self.take(whole, 0)
        return self.in_order(
            [
                self.take(self.blocks.scores(scorer, number), number)
                for number in self.numbers or [0]
            ]
        )

    @property
    def numbers(self) -> list[int]:
        """The blocks that hold a position."""
        return [n for n in range(len(self.blocks)) if self.starts[n + 1] > self.starts[n]]

    def take(self, scores: Tensor, number: int) -> Tensor:
        """The scores at the positions of one block, in the order of the blocks."""
        part = slice(self.starts[number], self.starts[number + 1])
        return scores[self.row[part], self.column[part]]

    def same(self, values: Tensor, scores: Tensor, number: int) -> Tensor:
        """Whether the scores at the positions of one block are these values [n] of all of them.

        NaN is not the same.
        """
        part = slice(self.starts[number], self.starts[number + 1])
        expected = values[part if self.order is None else self.order[part]]
        return (expected == self.take(scores, number)).all()

    def in_order(self, blocks: Sequence[Tensor]) -> Tensor:
        """[n] what ``take`` found in all blocks, in the caller's order."""
        if self.order is None:
            (values,) = blocks
            return values
        values = torch.cat(list(blocks))
        result = torch.empty_like(values)
        result[self.order] = values
        return result
