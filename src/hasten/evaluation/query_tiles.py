"""Queries in tiles of a fixed number of rows, so that a score depends on nothing else.

The rows of a matrix product differ in their last bits with the number of rows that are multiplied
together. So queries are always encoded and scored 256 at a time, in the same company: the last
tile is filled up by repeating its last query, and processes share whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hasten.arrays import Int64

TILE_ROWS = 256


@dataclass(frozen=True, eq=False)
class Tile:
    """padded: int64 [TILE_ROWS] queries; the first ``count`` are real, the others fill up."""

    padded: Int64
    count: int

    @property
    def rows(self) -> Int64:
        """[count] the real queries."""
        return self.padded[: self.count]


def make_tiles(lengths: Int64) -> list[Tile]:
    """All queries, those with little to encode first, so that a tile needs little padding.

    lengths: int64 [Q], what there is to encode for each query (its history).
    """
    order = np.argsort(lengths, kind="stable")
    tiles = []
    for start in range(0, len(order), TILE_ROWS):
        rows = order[start : start + TILE_ROWS]
        filling = np.repeat(rows[-1:], TILE_ROWS - len(rows))
        tiles.append(Tile(np.concatenate([rows, filling]), len(rows)))
    return tiles
