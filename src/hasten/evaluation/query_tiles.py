"""Query tiles of a fixed number of rows, which make scores independent of batch and process count.

The last bits of a matrix product depend on the number of rows. Queries are therefore always encoded
and scored in the same groups of 256: the last tile is padded by repeating its last query, and
processes share the work by whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hasten.arrays import Int64
from hasten.errors import OutOfMemoryError, first_line, is_out_of_memory

TILE_ROWS = 256
T = TypeVar("T")


@dataclass
class QueryChunks:
    """How many queries of a tile are scored at a time: half as many whenever memory runs out.

    release: frees cached memory. check_memory: raises MemoryError if the run exceeds its memory
    budget; called after each tile while fewer queries are possible. The last bits of scores depend
    on the number of rows.
    """

    release: Callable[[], None]
    rows: int = TILE_ROWS
    check_memory: Callable[[], None] = lambda: None

    def attempt(self, function: Callable[[], T]) -> T:
        """Call ``function``, which reads :attr:`rows`, until memory suffices.

        Raises OutOfMemoryError if it does not for one query at a time.
        """
        while True:
            try:
                return function()
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or isinstance(error, OutOfMemoryError):
                    raise
                reason = first_line(error)
            # outside of the handler: the error holds the tensors of the failed attempt
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

    padded_rows: int64 [TILE_ROWS] query indices; the first ``count`` are real, the others padding.
    """

    padded_rows: Int64
    count: int

    @property
    def rows(self) -> Int64:
        """[count] the query indices without padding."""
        return self.padded_rows[: self.count]


def make_tiles(lengths: Int64) -> list[Tile]:
    """Tiles of all queries, sorted by length so that a tile needs little padding.

    lengths: int64 [Q], for example the length of each query's history.
    """
    order = np.argsort(lengths, kind="stable")
    tiles = []
    for start in range(0, len(order), TILE_ROWS):
        rows = order[start : start + TILE_ROWS]
        padding = np.repeat(rows[-1:], TILE_ROWS - len(rows))
        tiles.append(Tile(np.concatenate([rows, padding]), len(rows)))
    return tiles
