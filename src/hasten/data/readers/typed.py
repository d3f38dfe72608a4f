"""Typed edges: PrimeKG's columns, ``source metaedge target`` with a table of nodes, edge files.

Heads and tails of the triples are ``type::id``; names of nodes are read if a file has them.

- ``primekg``: a header with x_id, x_type, y_id, y_type and relation (x_name and y_name are
  optional). Nodes are identified by (type, id): the same id under two types is two nodes.
- ``metaedges``: source, metaedge, target; the types come from a table of nodes (id, name, kind),
  or from ids written ``type::id``.
- ``edge-files``: one file per relation, whose first two header cells name the types of its columns
  (``Disease1`` and ``Disease2`` are both of type Disease).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hasten.arrays import Int64, encoded
from hasten.data.columns.checks import Rows, bad_rows, printable
from hasten.data.columns.ids import IdColumn
from hasten.data.columns.text import Sample, sample
from hasten.data.readers import cells, separated
from hasten.data.readers.arrow import open_arrow
from hasten.data.readers.columns import check_distinct
from hasten.data.readers.interface import Claim, Columns, header_claim
from hasten.data.readers.node_table import (
    NodeTable,
    label_of,
    labels_for,
    labels_of,
    names_of,
    unified,
)
from hasten.data.readers.table import Table
from hasten.data.tables import TYPE_MARK
from hasten.errors import DataError

PRIMEKG, METAEDGES, EDGE_FILES = "primekg", "metaedges", "edge-files"
FORMATS = {
    PRIMEKG: "typed edges with the columns of PrimeKG: x_id, x_type, y_id, y_type, relation",
    METAEDGES: "typed edges as source metaedge target; data.nodes names the table of nodes",
    EDGE_FILES: "typed edges, a CSV file a relation: data.edges.RELATION=FILE",
}
_PRIMEKG = {
    "relation": "relation", "x_id": "head", "x_type": "head_type",
    "y_id": "tail", "y_type": "tail_type", "x_name": "head_name", "y_name": "tail_name",
}  # fmt: skip
_METAEDGES = {"source": "head", "metaedge": "relation", "target": "tail"}
_FORMS = {PRIMEKG: _PRIMEKG, METAEDGES: _METAEDGES}
_SEPARATORS = (",", "\t", ";")
ENDS = ("head", "tail")


#: rows whose names are compared at a time
_BLOCK = 1 << 20
#: the edges of one file, and the names of nodes that it holds (label -> name)
TypedEdges = tuple[Columns, dict[str, str]]


@dataclass(frozen=True, eq=False)
class EdgeFile:
    """A file of edges: its beginning, part, format and claim, and the relation that it holds."""

    beginning: Sample
    part: int | None
    form: str
    claim: Claim
    relation: str | None = None

    @property
    def path(self) -> Path:
        return self.beginning.path


def claim(beginning: Sample) -> tuple[str, Claim] | None:
    """The format of a file whose header is one of typed edges, and how it is read."""
    if not beginning.lines:
        return None
    for separator, (form, known) in product(_SEPARATORS, _FORMS.items()):
        header = cells.stripped(beginning.texts[0], separator)
        plain = [cell.lower() for cell in header]
        if all(name in plain for name in _required(known)):
            check_distinct(str(beginning.path), [name for name in plain if name in known])
            roles = {known[n]: i for i, n in enumerate(plain) if n in known}
            text = separator, header, beginning.lines[0][0]
            return form, header_claim(None, header, roles, text)
    return None


def _required(known: dict[str, str]) -> list[str]:
    return [name for name in known if not name.endswith("name")]


def open_edge_file(
    path: Path, part: int | None, relation: str | None, form: str, default: str
) -> EdgeFile:
    """A file of edges and how it is read.

    relation: that of a file with the edges of one relation. form: the format that the options
    name; default: the one that they imply; "" for none.

    Raises:
        DataError: the header is not that of the format.
    """
    beginning = sample(path)
    if relation is not None:
        return EdgeFile(beginning, part, EDGE_FILES, _claim_edge_file(beginning), relation)
    claimed = claim(beginning)
    if claimed is None and not (form or default):
        raise DataError(f"{path}: line 1 is no header of typed edges ({', '.join(FORMATS)})")
    if claimed is None or form not in ("", claimed[0]):
        needed = ",".join(_required(_FORMS[form or default]))
        first = printable(beginning.texts[0]) if beginning.lines else "nothing"
        raise DataError(f"{path}: line 1: a header with {needed} is expected: {first}")
    return EdgeFile(beginning, part, *claimed)


def _claim_edge_file(beginning: Sample) -> Claim:
    """How a file with the edges of one relation is read."""
    for separator in _SEPARATORS:
        header = cells.stripped(beginning.texts[0], separator)
        if len(header) >= 2:
            break
    if len(header) < 2 or not all(re.match(r"[^\W\d]", cell) for cell in header[:2]):
        raise DataError(
            f"{beginning.path}: line {beginning.lines[0][0]}: the first two cells of the header "
            f"must name types of nodes, as in Drug,Disease: {printable(beginning.texts[0])}"
        )
    text = separator, header, beginning.lines[0][0]
    return header_claim(None, header, {"head": 0, "tail": 1}, text)


def read_edges(file: EdgeFile, nodes: NodeTable | None) -> TypedEdges:
    """The edges of a file."""
    layout: cells.Layout = file.claim.layout
    table = separated.open_table(file.beginning, layout, file.claim.notes)
    column = labels_of(table)
    if file.form == PRIMEKG:
        ends = _joined(column)
    elif file.form == METAEDGES:
        ends = [_looked_up(column[role], nodes, table.rows) for role in ENDS]
    else:
        kinds = types_of(file)
        ends = [
            IdColumn(end.codes, pa.array([label_of(kind, name) for name in end.texts()]))
            for end, kind in zip((column["head"], column["tail"]), kinds, strict=True)
        ]
        codes = np.zeros(len(column["head"]), np.int32)
        column["relation"] = IdColumn(codes, pa.array([file.relation]))
    return _edges(table, column, ends)


def types_of(file: EdgeFile) -> list[str]:
    """The types of the two columns of a file with the edges of one relation."""
    return [re.sub(r"[\W\d]+$", "", name) for name in file.claim.layout.header[:2]]


def is_typed_table(names: list[str]) -> bool:
    """Whether a table in memory has the columns of PrimeKG."""
    return all(name in names for name in _required(_PRIMEKG))


def read_edge_table(table: pa.Table, source: str) -> TypedEdges:
    """The edges of a table in memory with the columns of PrimeKG."""
    names = table.column_names
    roles = {role: names.index(name) for name, role in _PRIMEKG.items() if name in names}
    opened = open_arrow(source, table, roles)
    column = labels_of(opened)
    return _edges(opened, column, _joined(column))


def _edges(table: Table, column: dict[str, IdColumn], ends: list[IdColumn]) -> TypedEdges:
    named_ends = [i for i, role in enumerate(ENDS) if f"{role}_name" in table.columns]
    texts = [names_of(table, f"{ENDS[i]}_name") for i in named_ends]
    names = _names([ends[i] for i in named_ends], texts, table.rows) if named_ends else {}
    triples = Columns(
        rows=table.rows,
        ids={"head": ends[0], "relation": column["relation"], "tail": ends[1]},
        files=table.files,
        notes=table.notes,
    )
    return triples, names


def _joined(column: dict[str, IdColumn]) -> list[IdColumn]:
    """``type::id`` of the heads and of the tails, with the same values."""
    ids, kinds = (_united([column[role + end] for role in ENDS]) for end in ("", "_type"))
    pairs = kinds.codes.astype(np.int64) * len(ids.values) + ids.codes
    distinct_pairs, codes = encoded(pairs, len(kinds.values) * len(ids.values))
    of_kind, name = np.divmod(distinct_pairs, len(ids.values))
    labels = labels_for(kinds.values.take(pa.array(of_kind)), ids.values.take(pa.array(name)))
    joined = unified(codes, labels)
    return [IdColumn(half, joined.values) for half in np.split(joined.codes, 2)]


def _united(columns: list[IdColumn]) -> IdColumn:
    """Columns one after the other."""
    first, second = (each.values for each in columns)
    shifted = np.concatenate([columns[0].codes, columns[1].codes + np.int32(len(first))])
    return unified(shifted, pa.concat_arrays([first, second]))


def _looked_up(column: IdColumn, nodes: NodeTable | None, rows: Rows) -> IdColumn:
    """The labels of ids by the table of nodes; without a table the ids are labels already."""
    texts = column.texts()
    bad = np.array(unlisted(texts, nodes), bool)
    if bad.any():
        marked = np.flatnonzero(bad[column.codes])
        raise unlisted_error(rows, len(column), marked, lambda i: texts[column.codes[i]], nodes)
    if nodes is None:
        return column
    return IdColumn(column.codes, pa.array([nodes.labels[text] for text in texts]))


def unlisted(texts: list[str], nodes: NodeTable | None) -> list[bool]:
    """Which ids have no label: they are not in the table of nodes, or without one have no type."""
    if nodes is None:
        return [text.find(TYPE_MARK) < 1 for text in texts]
    return [text not in nodes.labels for text in texts]


def unlisted_error(
    rows: Rows, count: int, marked: Int64, text_of: Callable[[int], str], nodes: NodeTable | None
) -> DataError:
    """The error about the marked rows of ``count``, whose ids (``text_of``) have no label."""
    if nodes is None:
        reason = "has no type"
        remedy = "ids are type::id, or --set data.nodes=FILE names a table of id, name and kind"
    else:
        reason = f"is not in {nodes.path}"
        remedy = "add the nodes to the table, or leave out the edges"
    return bad_rows([(rows, count)], marked, lambda row: f"node {text_of(row)!r} {reason}", remedy)


def _names(ends: list[IdColumn], texts: list[pa.Array], rows: Rows) -> dict[str, str]:
    """The names of nodes. Two names for one (type, id) are refused with their line.

    ends: columns with the same values; texts: the names in each of their rows, empty for none.
    """
    values, rows_of_end = ends[0].values, len(ends[0])
    #: of each node, its first row with a name: of the first end, or behind these of the second
    first = np.full(len(values), -1)
    for number, (end, text) in reversed([*enumerate(zip(ends, texts, strict=True))]):
        named = np.flatnonzero(np.asarray(pc.binary_length(text)))
        # of repeated places, the last assignment holds
        first[end.codes[named][::-1]] = named[::-1] + number * rows_of_end
    known = np.flatnonzero(first >= 0)
    if not len(known):
        return {}
    called = _text_of(texts, first[known])
    place = np.zeros(len(values), np.int32)  # nodes without a name have none to compare
    place[known] = np.arange(len(known))
    for end, text in zip(ends, texts, strict=True):
        for start in range(0, rows_of_end, _BLOCK):
            part = text.slice(start, _BLOCK)
            names = called.take(pa.array(place[end.codes[start : start + _BLOCK]]))
            differs = pc.and_(pc.not_equal(part, names), pc.not_equal(pc.binary_length(part), 0))
            if pc.any(differs).as_py():
                row = start + pc.index(differs, True).as_py()
                raise renamed(rows, values[int(end.codes[row])], text[row], names[row - start], row)
    labels = values.take(pa.array(known)).to_pylist()
    return dict(zip(labels, called.to_pylist(), strict=True))


def _text_of(texts: list[pa.Array], rows: Int64) -> pa.Array:
    """The texts in these rows of several arrays one after the other; no rows twice."""
    bounds = np.cumsum([0, *map(len, texts)])
    parts = [
        text.take(pa.array(rows[(rows >= first) & (rows < last)] - first))
        for text, first, last in zip(texts, bounds[:-1], bounds[1:], strict=True)
    ]
    number = np.searchsorted(bounds, rows, "right")
    order = np.argsort(np.argsort(number, kind="stable"), kind="stable")
    return pa.concat_arrays(parts).take(pa.array(order))


def renamed(rows: Rows, label: pa.Scalar, now: pa.Scalar, before: pa.Scalar, row: int) -> DataError:
    """The error about a node with a second name."""
    kind, _, node = label.as_py().partition(TYPE_MARK)
    return bad_rows(
        [(rows, row + 1)],
        np.array([row]),
        f"duplicate ({kind}, {node}): named {now.as_py()!r} here and {before.as_py()!r} before",
        "the pair (type, id) must name one node",
    )
