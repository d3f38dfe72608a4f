"""Second pass: number the edges by the final vocabularies, and choose and classify them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import TypedGraphOptions
from hasten.data.columns import ids
from hasten.data.columns.ids import IdColumn
from hasten.data.graph.node_types import type_codes
from hasten.data.graph.typed_links import (
    Mask,
    chosen_kinds,
    left_out_notes,
    node_notes,
    nothing_left,
    one_pair_each,
)
from hasten.data.graph_store.collect import HEAD, RELATION, TAIL, Collected, Numbers
from hasten.data.store_folder import buckets
from hasten.data.store_folder.buckets import Buckets, load, spans

#: most slices of nodes
_SLICES = 10


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges that are chosen, in scratch files by row: head, tail and kind (-1: not chosen).

    rows: of the files; ends: up to the end of every file; count: the chosen edges. entities:
    labels, sorted [N]; code: [N] types of nodes, whose names are ``types``. Of every kind: its
    relation, and whether its edges are turned; labels: of the relations [R]; source, target: [R]
    the types that a relation joins. degrees: int64 [N] edges of each node; lows: [N] edges whose
    end with the lower number it is. slices: [N] numbers of slices of nodes with edges alike.
    """

    folder: Path
    ends: list[int]
    count: int
    entities: pa.Array
    types: tuple[str, ...]
    code: Int64
    relation: Int64
    turned: Mask
    labels: list[str]
    source: Int64
    target: Int64
    lows: Int64
    slices: NDArray[np.int32]
    notes: list[str]

    @property
    def rows(self) -> int:
        return self.ends[-1]

    @property
    def nodes(self) -> int:
        return len(self.entities)

    def file_of(self, row: NDArray[Any]) -> NDArray[Any]:
        """The number of the file of rows."""
        return np.searchsorted(self.ends, row, "right")

    def load(self, begin: int, end: int) -> tuple[Numbers, Numbers, Numbers]:
        """Heads, tails and kinds of rows."""
        head, tail, kind = (load(self.folder / n, "int32", begin, end) for n in _COLUMNS)
        return head, tail, kind

    def remove(self) -> None:
        """Remove the scratch files."""
        for name in _COLUMNS:
            (self.folder / name).unlink()

    def by_low_node(self) -> Buckets:
        """Head, tail, kind and row of the edges, together by their end with the lower number."""
        row_type = np.int32 if self.rows < 2**31 else np.int64
        types = {HEAD: np.int32, TAIL: np.int32, "kind": np.int32, "row": row_type}

        def divide(span: tuple[int, int]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
            head, tail, kind = self.load(*span)
            row = np.flatnonzero(kind >= 0)
            head, tail, kind = head[row], tail[row], kind[row]
            return np.minimum(head, tail), [head, tail, kind, row + span[0]]

        # fewer rows than to sort: what is computed of them takes 30 times their memory
        divided = Buckets(self.folder / "edges", types, self.lows, max(1, buckets.BUCKET >> 2))
        divided.fill(spans(0, self.rows, 4), divide)
        return divided


_COLUMNS = (HEAD, TAIL, RELATION)


def number_edges(
    collected: Collected, labels: pa.Array, options: TypedGraphOptions, where: str
) -> Edges:
    """The edges that the options choose. The scratch files are written anew, in their places.

    labels: of the numbers of nodes; where: the data, for messages. Raises DataError.
    """
    whole = IdColumn(np.arange(len(labels), dtype=np.int32), labels)
    known = ids.checked("entity", (HEAD, TAIL), [whole], collected.rows, options.ids)
    entities, position = known.labels, known.codes[0]
    del whole
    texts, relation_at, relation_notes = _relations(collected, options)
    names, code = type_codes(entities)
    of_types, of_relations = chosen_kinds(options, names, texts, collected.table, where)
    chosen, types = of_types[code], len(names)
    degrees, lows = np.zeros((2, len(entities)), np.int64)
    kinds: dict[int, int] = {}
    count = begin = 0
    for rows, end in zip(collected.rows, collected.ends, strict=True):
        before = count
        for span in spans(begin, end, 4):
            head, tail, relation = (load(collected.folder / n, "int32", *span) for n in _COLUMNS)
            head, tail, relation = position[head], position[tail], relation_at[relation]
            keep = chosen[head] & chosen[tail] & of_relations[relation]
            pair = (relation.astype(np.int64) * types + code[head]) * types + code[tail]
            encoded = pa.array(pair[keep]).dictionary_encode()
            given = [kinds.setdefault(k, len(kinds)) for k in encoded.dictionary.to_pylist()]
            kind = np.full(len(keep), -1, np.int32)
            kind[keep] = np.array(given, np.int32)[np.asarray(encoded.indices)]
            for name, column in zip(_COLUMNS, (head, tail, kind), strict=True):
                with (collected.folder / name).open("r+b") as file:
                    file.seek(span[0] * column.itemsize)
                    column.tofile(file)
            head, tail = head[keep], tail[keep]
            for ends in (head, tail):
                degrees += np.bincount(ends, minlength=len(degrees))
            lows += np.bincount(np.minimum(head, tail), minlength=len(degrees))
            count += len(head)
        if count == before:
            raise nothing_left(rows.source)
        begin = end
    notes = left_out_notes(len(collected) - count)
    used = degrees > 0
    notes += node_notes(options, names, code, entities, used, collected.table, where)
    notes += [*collected.notes, *known.notes, *relation_notes]
    stored, of_kind, turned = one_pair_each(list(kinds), texts, names)
    source, target = np.zeros((2, len(stored)), np.int64)
    pairs = np.array(list(kinds))[~turned]
    source[of_kind[~turned]], target[of_kind[~turned]] = pairs // types % types, pairs % types
    # so many that a range of (relation, slice) is rarely much larger than others
    size = max(1, 2 * count >> _SLICES)
    slices = (np.cumsum(degrees) - degrees) // size
    slices = np.unique(slices, return_inverse=True)[1].astype(np.int32)
    return Edges(
        collected.folder, collected.ends, count, entities, names, code, of_kind, turned, stored,
        source, target, lows, slices, notes,
    )  # fmt: skip


def _relations(
    collected: Collected, options: TypedGraphOptions
) -> tuple[list[str], Numbers, tuple[str, ...]]:
    """The relations as texts, sorted; the place of each number among them; notes."""
    values, numbers = collected.relations.distinct()
    place = np.zeros(len(numbers), np.int64)
    place[numbers] = np.arange(len(numbers))
    columns = [
        IdColumn(np.arange(len(kinds), dtype=np.int32), values.take(pa.array(place[kinds])))
        for kinds in collected.kinds
    ]
    known = ids.checked("relation", (RELATION,), columns, collected.rows, options.ids)
    at = np.zeros(len(numbers), np.int32)
    for kinds, codes in zip(collected.kinds, known.codes, strict=True):
        at[kinds] = codes
    texts: list[str] = known.labels.cast(pa.string()).to_pylist()
    return texts, at, known.notes
