"""Query tiles of fixed size, so that scores do not depend on batch size or process count.

The last bits of a matrix product depend on the number of rows. Queries are therefore always encoded
and scored in the same groups: the last tile is padded by repeating its last query, and processes
share the work by whole tiles. A group has 256 queries, on CUDA up to 4,096, because small products
take less time there than their launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from hasten.arrays import Int64
from hasten.errors import OutOfMemoryError, first_line, is_out_of_memory
from hasten.ops.ranking.column_blocks import ColumnBlocks

TILE_ROWS = 256
#: rows of a tile on CUDA, if there are enough queries
MAX_TILE_ROWS = 4096
#: a tile on CUDA has at most an eighth of the queries, so that eight processes can share them
_MIN_TILES = 8
#: most scores of a tile against a block of candidates on CUDA (1 GiB of float32)
_MAX_SCORES = 2**28
#: of the memory of the GPU, the largest part that these scores may take
_MAX_MEMORY_SHARE = 1 / 32
#: the number of these candidates is a multiple of it
_COLUMN_MULTIPLE = 128
T = TypeVar("T")


@dataclass(frozen=True)
class TileShape:
    """The number of queries of a tile, and of candidates that are scored at a time.

    They depend on the device, but not on how much of its memory is free, nor on the number of
    processes: another evaluation of the same weights gives the same metrics.
    """

    rows: int
    columns: int

    @classmethod
    def of(cls, device: torch.device, queries: int, candidates: int) -> TileShape:
        if device.type != "cuda":
            columns = ColumnBlocks.choose(TILE_ROWS, candidates, None).columns
            return cls(TILE_ROWS, columns)
        rows = MAX_TILE_ROWS
        while rows > TILE_ROWS and rows * _MIN_TILES > queries:
            rows //= 2
        memory = torch.cuda.get_device_properties(device).total_memory
        columns = (
            min(_MAX_SCORES, int(memory * _MAX_MEMORY_SHARE) // 4)
            // rows
            // _COLUMN_MULTIPLE
            * _COLUMN_MULTIPLE
        )
        return cls(rows, min(candidates, max(_COLUMN_MULTIPLE, columns)))


@dataclass
class TileMemoryRetry:
    """How many queries of a tile at most are scored at a time: fewer whenever memory runs out.

    release: frees cached memory. check_memory: raises MemoryError if the run exceeds its memory
    budget; called after each tile while fewer queries are possible. The last bits of scores depend
    on the number of rows.
    """

    release: Callable[[], None]
    rows: int = MAX_TILE_ROWS
    check_memory: Callable[[], None] = lambda: None

    def attempt(self, function: Callable[[], T], tile_rows: int = TILE_ROWS) -> T:
        """Call ``function``, which reads :attr:`rows`, until memory suffices.

        tile_rows: the queries of a tile; half as many are scored after the first failure.
        Raises OutOfMemoryError if memory does not suffice for one query at a time.
        """
        while True:
            try:
                return function()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or isinstance(error, OutOfMemoryError):
                    raise
                reason = first_line(error)
            # outside of the handler: the error holds the tensors of the failed attempt
            self.rows = min(self.rows, tile_rows)
            self.release()
            if self.rows == 1:
                raise OutOfMemoryError(
                    f"the evaluation ran out of memory with one query at a time ({reason}): free "
                    "memory, or train a smaller model; hasten plan shows what an evaluation needs, "
                    "and hasten resume goes on from the last checkpoint"
                )
            self.rows //= 2


@dataclass(frozen=True, eq=False)
class Tile:
    """A fixed number of queries.

    padded_rows: int64 [rows of a tile] query indices; the first ``count`` are real, the others are
    padding.
    """

    padded_rows: Int64
    count: int

    @property
    def rows(self) -> Int64:
        """[count] the query indices without padding."""
        return self.padded_rows[: self.count]


def make_tiles(lengths: Int64, tile_rows: int = TILE_ROWS) -> list[Tile]:
    """Tiles of all queries, sorted by length so that a tile needs little padding.

    lengths: int64 [Q], for example the length of each query's history.
    """
    order = np.argsort(lengths, kind="stable")
    tiles = []
    for start in range(0, len(order), tile_rows):
        rows = order[start : start + tile_rows]
        padding = np.repeat(rows[-1:], tile_rows - len(rows))
        tiles.append(Tile(np.concatenate([rows, padding]), len(rows)))
    return tiles
