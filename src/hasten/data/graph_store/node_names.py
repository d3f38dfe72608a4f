"""The names of nodes, from columns that are read in blocks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


class NodeNames:
    """The names by the numbers of nodes. A node has one name wherever it has one."""

    def __init__(self) -> None:
        self._place = np.full(0, -1, np.int32)  # of the name of each node
        self._names = pa.array([], pa.large_string())
        self._ends: list[int] = []

    def add(self, nodes: NDArray[np.int32], texts: pa.Array) -> int | None:
        """Add the names of nodes (large_string [n], empty for none), or return a row that differs.

        nodes: int32 [n].
        """
        size = int(nodes.max(initial=-1)) + 1
        if size > len(self._place):
            more = np.full(max(size, 2 * len(self._place)) - len(self._place), -1, np.int32)
            self._place = np.append(self._place, more)
        new = np.flatnonzero((self._place[nodes] < 0) & (np.asarray(pc.binary_length(texts)) > 0))
        if len(new):
            # of repeated nodes, the last assignment holds: that of the first row
            first = np.full(size, -1, np.int64)
            first[nodes[new][::-1]] = new[::-1]
            rows = np.sort(first[first >= 0])
            self._place[nodes[rows]] = len(self._names) + np.arange(len(rows), dtype=np.int32)
            self._names = pa.concat_arrays([self._names, texts.take(pa.array(rows))])
        if not len(self._names):
            return None
        known = self._names.take(pa.array(np.maximum(self._place[nodes], 0)))
        differs = pc.and_(pc.not_equal(texts, known), pc.not_equal(pc.binary_length(texts), 0))
        row = int(pc.index(differs, True).as_py())
        return None if row < 0 else row

    def end_of_file(self) -> None:
        """The names that follow are those of the next file."""
        self._ends.append(len(self._names))

    def name_of(self, node: int) -> tuple[pa.Scalar, bool]:
        """The name of a node, and whether the file that is being read gave it."""
        place = int(self._place[node])
        return self._names[place], place >= (self._ends[-1] if self._ends else 0)

    def by_file(self) -> list[tuple[NDArray[np.int64], pa.Array]]:
        """The nodes that each file named first, and their names."""
        nodes = np.flatnonzero(self._place >= 0)
        nodes = nodes[np.argsort(self._place[nodes])]
        bounds = [0, *self._ends]
        return [(nodes[a:b], self._names.slice(a, b - a)) for a, b in pairwise(bounds)]
