"""Query tiles of a fixed number of rows, which make scores independent of batch and process count.

The last bits of a matrix product depend on the number of rows. Queries are therefore always encoded
and scored in the same groups of 256: the last tile is padded by repeating its last query, and
processes share the work by whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hasten.arrays import Int64

TILE_ROWS = 256


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
