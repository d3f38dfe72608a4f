"""Last pass over the edges: write head, relation and tail of the triples of each part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.graph_store import manifest
from hasten.data.graph_store.columns import Places, Progress, file_of
from hasten.data.graph_store.edges import Edges
from hasten.data.graph_store.judge import KEPT, PART, REVERSED
from hasten.data.store_folder import buckets
from hasten.data.store_folder.buckets import Buckets
from hasten.data.tables import PART_NAMES


class CodesByRow:
    """The codes of edges, together by ranges of rows of the files."""

    def __init__(self, edges: Edges) -> None:
        self.size = min(buckets.BUCKET, 1 << 16)
        starts = np.arange(0, edges.rows + self.size, self.size)
        counts = np.diff(np.minimum(starts, edges.rows))
        row_type = np.int32 if edges.rows < 2**31 else np.int64
        self.buckets = Buckets(edges.folder / "codes", {"row": row_type, "code": np.uint8}, counts)

    def fill(self, judged: Iterator[tuple[NDArray[Any], NDArray[np.uint8]]]) -> None:
        """Write the codes of rows."""
        self.buckets.fill(judged, lambda each: (each[0] // self.size, list(each)))


def write_triples(
    edges: Edges,
    codes: CodesByRow,
    sizes: Int64,
    numbers: tuple[Places, Places],
    folder: Path,
    report: Progress,
) -> None:
    """Head, relation and tail: each part in the order of the files, a reverse after its edge.

    sizes: of the parts; numbers: the final numbers of entities and of relations.
    """
    entity, relation_at = numbers
    first = np.cumsum(sizes) - sizes
    cursors, total = first.copy(), int(sizes.sum())

    def triples(number: int, columns: list[NDArray[Any]]) -> list[list[NDArray[np.int32]]]:
        begin, end = (codes.buckets.first[number : number + 2] * codes.size).tolist()
        end = min(end, edges.rows)
        code = np.zeros(end - begin, np.uint8)
        code[columns[0] - begin] = columns[1]
        row = np.flatnonzero(code & KEPT)
        head, tail, kind = (column[row] for column in edges.load(begin, end))
        code = code[row]
        turned = edges.turned[kind]
        head, tail = np.where(turned, tail, head), np.where(turned, head, tail)
        place = np.repeat(np.arange(len(row)), 1 + (code & REVERSED) // REVERSED)
        second = np.diff(place, prepend=-1) == 0
        part, relation = (code >> PART)[place], edges.relation[kind][place]
        heads = np.where(second, tail[place], head[place])
        tails = np.where(second, head[place], tail[place])
        values = (entity[heads], relation_at[relation], entity[tails])
        return [[v[part == p].astype(np.int32) for v in values] for p in range(len(PART_NAMES))]

    with ExitStack() as stack:
        files = [stack.enter_context((folder / file_of(n)).open("wb")) for n in manifest.TRIPLES]
        for parts in codes.buckets.map(triples):
            for part, columns in enumerate(parts):
                for column, file in zip(columns, files, strict=True):
                    os.pwrite(file.fileno(), column.data, int(cursors[part]) * column.itemsize)
                cursors[part] += len(columns[0])
            report(int((cursors - first).sum()), total)
