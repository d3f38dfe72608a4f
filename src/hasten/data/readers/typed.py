"""Typed edges: PrimeKG's columns, ``source metaedge target`` with a table of nodes, edge files.

Every reader gives triples whose heads and tails are ``type::id``, and the names of nodes.

- ``primekg``: a header with x_id, x_type, y_id, y_type and relation (x_name and y_name are read
  where they are there). Nodes are keyed by (type, id): the same id under two types is two nodes.
- ``metaedges``: source, metaedge, target; the types come from a table of nodes (id, name, kind),
  or from ids written ``type::id``.
- ``edge-files``: a file a relation, whose first two header cells name the types of its columns
  (``Disease1`` and ``Disease2`` are both of type Disease).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns.checks import Problem, Rules, printable, refusal
from hasten.data.columns.raw import IdColumn
from hasten.data.columns.text import Sample, sample
from hasten.data.readers import cells, separated
from hasten.data.readers.columnar import Columns
from hasten.data.readers.interface import Claim
from hasten.data.readers.triples import TripleColumns
from hasten.data.tables import TYPE_MARK
from hasten.errors import DataError

PRIMEKG, METAEDGES, EDGE_FILES = "primekg", "metaedges", "edge-files"
SUMMARIES = {
    PRIMEKG: "typed edges with the columns of PrimeKG: x_id, x_type, y_id, y_type, relation",
    METAEDGES: "typed edges as source metaedge target; data.nodes names the table of nodes",
    EDGE_FILES: "typed edges, a CSV file a relation: data.edges.RELATION=FILE",
}
_PRIMEKG = {
    "relation": "relation", "x_id": "head", "x_type": "head_type",
    "y_id": "tail", "y_type": "tail_type", "x_name": "head_name", "y_name": "tail_name",
}  # fmt: skip
_METAEDGES = {"source": "head", "metaedge": "relation", "target": "tail"}
_LABELS = Rules(head="labels", relation="labels", tail="labels", head_type="labels",
                tail_type="labels")  # fmt: skip


@dataclass(eq=False)
class NodeTable:
    """The nodes that a table lists: id text -> its label ``type::id``; label -> name."""

    path: Path
    labels: dict[str, str]
    names: dict[str, str]
    types: tuple[str, ...]


@dataclass(eq=False)
class TypedEdges:
    """The edges of one file with the names of nodes that stand beside them."""

    columns: TripleColumns
    names: dict[str, str] = field(default_factory=dict)


def claim(beginning: Sample) -> tuple[str, Claim] | None:
    """The format of a file whose header is that of typed edges, and how it is read."""
    if not beginning.lines:
        return None
    for separator in (",", "\t", ";"):
        try:
            header = [cell.strip() for cell in cells.split(beginning.texts[0], separator)]
        except csv.Error:
            continue
        plain = [cell.lower() for cell in header]
        for form, known in ((PRIMEKG, _PRIMEKG), (METAEDGES, _METAEDGES)):
            needed = [name for name in known if not name.endswith("name")]
            if all(name in plain for name in needed):
                columns = {known[n]: i for i, n in enumerate(plain) if n in known}
                if repeated := {n for n in plain if n in known and plain.count(n) > 1}:
                    raise DataError(f"{beginning.path}: the header names {min(repeated)!r} twice")
                return form, _claim(beginning, separator, header, columns)
    return None


def _claim(beginning: Sample, separator: str, header: list[str], columns: dict[str, int]) -> Claim:
    named = {role: header[i] for role, i in columns.items()}
    unused = [name for i, name in enumerate(header) if i not in columns.values()]
    return Claim(
        reason=f"a header with the columns {', '.join(named.values())}",
        details={"separator": separator, "columns": named, "header": header},
        notes=(f"columns not used: {', '.join(unused)}",) if unused else (),
        layout=cells.Layout(separator, len(header), columns, tuple(header), beginning.lines[0][0]),
    )


def edge_file_claim(beginning: Sample) -> Claim:
    """How a file of edges of one relation is read."""
    for separator in (",", "\t", ";"):
        header = [cell.strip() for cell in cells.split(beginning.texts[0], separator)]
        if len(header) >= 2:
            break
    if len(header) < 2 or not all(re.match(r"[^\W\d]", cell) for cell in header[:2]):
        raise DataError(
            f"{beginning.path}: line {beginning.lines[0][0]}: the first two cells of the header "
            f"must name types of nodes, as in Drug,Disease: {printable(beginning.texts[0])}"
        )
    return _claim(beginning, separator, header, {"head": 0, "tail": 1})


def read_edges(
    path: Path, form: str, nodes: NodeTable | None, relation: str | None = None
) -> TypedEdges:
    """The edges of a file. relation: that of an edge file.

    Raises:
        DataError: what cannot be used, with file, line and text.
    """
    beginning = sample(path)
    claimed = edge_file_claim(beginning) if form == EDGE_FILES else _claimed(beginning, form)
    layout: cells.Layout = claimed.layout
    reader, table, file = separated.open_table(path, layout, beginning.texts[1:])
    column = {role: _trimmed(reader.ids(table, role)) for role in layout.columns}
    for role in layout.columns:
        if not role.endswith("name"):
            _check(reader, role, column[role])
    edges = _Rows(str(path), reader.lines_of_rows, layout.expected())
    if form == EDGE_FILES:
        kinds = [re.sub(r"[\W\d]+$", "", name) for name in layout.header[:2]]
        ends = [_prefixed(column[role], kind) for role, kind in zip(_ENDS, kinds, strict=True)]
        assert relation is not None
        count = len(column["head"])
        column["relation"] = IdColumn(np.zeros(count, np.int32), pa.array([relation]))
    elif form == PRIMEKG:
        ends = [_joined(column[role], column[f"{role}_type"]) for role in _ENDS]
    else:
        ends = [_looked_up(column[role], nodes, edges) for role in _ENDS]
    for end in ends:
        _check_types(end, edges)
    names: dict[str, str] = {}
    for role, end in zip(_ENDS, ends, strict=True):
        if f"{role}_name" in column:
            _gather_names(names, end, column[f"{role}_name"], edges)
    return TypedEdges(
        TripleColumns(
            source=str(path),
            head=ends[0],
            relation=column["relation"],
            tail=ends[1],
            part=None,
            problems=reader.problems,
            places=reader.lines_of_rows,
            expected=layout.expected(),
            files=(file,),
            notes=claimed.notes,
        ),
        names,
    )


def is_typed_table(names: list[str]) -> bool:
    """Whether a table in memory has the columns of PrimeKG."""
    return all(name in names for name in _PRIMEKG if not name.endswith("name"))


def read_edge_table(table: pa.Table, source: str) -> TypedEdges:
    """The edges of a table in memory with the columns of PrimeKG.

    Raises:
        DataError: what cannot be used, with its row.
    """
    if not table.num_rows:
        raise DataError(f"{source}: 0 rows")
    used = {role: table.column(n) for n, role in _PRIMEKG.items() if n in table.column_names}
    columns = Columns(source, used)
    column = {role: _trimmed(columns.ids(role)) for role in used}
    for role, values in column.items():
        if not role.endswith("name") and _bad_label(role, values):
            columns.refuse("", _LABELS)

    def places(rows: Int64) -> Iterator[tuple[str, str]]:
        shown = table.take(pa.array(rows)).to_pylist()
        for row, cell in zip(rows.tolist(), shown, strict=True):
            yield f"row {row + 1}", ", ".join(map(str, cell.values()))

    rows = _Rows(source, places, columns.expected)
    ends = [_joined(column[role], column[f"{role}_type"]) for role in _ENDS]
    names: dict[str, str] = {}
    for role, end in zip(_ENDS, ends, strict=True):
        _check_types(end, rows)
        if f"{role}_name" in column:
            _gather_names(names, end, column[f"{role}_name"], rows)
    return TypedEdges(
        TripleColumns(
            source, ends[0], column["relation"], ends[1], None, columns.problems, places,
            columns.expected,
        ),
        names,
    )  # fmt: skip


_ENDS = ("head", "tail")


@dataclass(frozen=True, eq=False)
class _Rows:
    """What a refusal of rows needs."""

    source: str
    places: Callable[[Int64], Iterator[tuple[str, str]]]
    expected: str

    def refuse(self, rows: NDArray[np.bool_], reason: Callable[[int], str], remedy: str) -> None:
        """Raise the error about the marked rows."""
        found = np.flatnonzero(rows)

        def problems() -> Iterator[Problem]:
            first = found[:5]
            for row, (where, text) in zip(first.tolist(), self.places(first), strict=True):
                yield Problem(where, text, reason(row))
            for _ in range(len(found) - len(first)):
                yield Problem("line", "", "")

        raise refusal(self.source, problems(), self.expected, remedy, "")


def _claimed(beginning: Sample, form: str) -> Claim:
    found = claim(beginning)
    if found is None or found[0] != form:
        needed = {PRIMEKG: "x_id,x_type,y_id,y_type,relation", METAEDGES: "source,metaedge,target"}
        first = printable(beginning.texts[0]) if beginning.lines else "nothing"
        raise DataError(
            f"{beginning.path}: line 1: a header with {needed[form]} is expected: {first}"
        )
    return found[1]


def _trimmed(column: IdColumn) -> IdColumn:
    return _unified(column.codes, pc.utf8_trim_whitespace(column.values.cast(pa.string())))


def _unified(codes: NDArray[np.int32], values: pa.Array) -> IdColumn:
    """A column whose values may have become equal."""
    encoded = values.dictionary_encode()
    return IdColumn(np.asarray(encoded.indices, np.int32)[codes], encoded.dictionary)


def _check(reader: separated.FileReader, role: str, column: IdColumn) -> None:
    """Refuse ids that are empty, cannot be printed or look like missing values."""
    if _bad_label(role, column):
        raise refusal(str(reader.path), reader.problems(_LABELS), reader.layout.expected(), "", "")


def _bad_label(role: str, column: IdColumn) -> bool:
    texts = column.values.to_pylist()
    return any(_LABELS.id_problem(role, text, "labels") is not None for text in texts)


def _prefixed(column: IdColumn, kind: str) -> IdColumn:
    return IdColumn(column.codes, pa.array([label_of(kind, i) for i in column.values.to_pylist()]))


def label_of(kind: str, name: str) -> str:
    """``type::id``; an id that is written so already stays."""
    return name if name.startswith(kind + TYPE_MARK) else kind + TYPE_MARK + name


def _joined(column: IdColumn, kind: IdColumn) -> IdColumn:
    """``type::id`` of every row."""
    width = len(column.values)
    pairs, codes = np.unique(
        kind.codes.astype(np.int64) * width + column.codes, return_inverse=True
    )
    names, kinds = column.values.to_pylist(), kind.values.to_pylist()
    labels = [label_of(kinds[p // width], names[p % width]) for p in pairs.tolist()]
    return _unified(codes.reshape(-1).astype(np.int32), pa.array(labels, pa.string()))


def _looked_up(column: IdColumn, nodes: NodeTable | None, rows: _Rows) -> IdColumn:
    """The labels of ids by the table of nodes, or as they are where there is none."""
    texts = column.values.to_pylist()
    if nodes is None:
        bare = np.array([TYPE_MARK not in text for text in texts], bool)
        if bare.any():
            rows.refuse(
                bare[column.codes],
                lambda row: f"node {texts[column.codes[row]]!r} has no type",
                "ids are type::id, or --set data.nodes=FILE names a table of id, name and kind",
            )
        return column
    missing = np.array([text not in nodes.labels for text in texts], bool)
    if missing.any():
        rows.refuse(
            missing[column.codes],
            lambda row: f"node {texts[column.codes[row]]!r} is not in {nodes.path}",
            "add the nodes to the table, or leave out the edges",
        )
    return IdColumn(column.codes, pa.array([nodes.labels[text] for text in texts]))


def _check_types(column: IdColumn, rows: _Rows) -> None:
    """Refuse a type that cannot be told from an id."""
    kinds = [text.split(TYPE_MARK)[0] for text in column.values.to_pylist()]
    bad = np.array([not kind or not kind.isprintable() for kind in kinds], bool)
    if bad.any():
        rows.refuse(bad[column.codes], lambda _: "the type of a node is empty", "")


def _gather_names(names: dict[str, str], column: IdColumn, name: IdColumn, rows: _Rows) -> None:
    """Add the names of nodes; two for one (type, id) are refused with their lines."""
    width = len(name.values)
    pairs, first = np.unique(column.codes.astype(np.int64) * width + name.codes, return_index=True)
    labels, texts = column.values.to_pylist(), name.values.to_pylist()
    for pair, row in zip(pairs.tolist(), first.tolist(), strict=True):
        label, text = labels[pair // width], texts[pair % width]
        if text and names.setdefault(label, text) != text:
            kind, _, node = label.partition(TYPE_MARK)
            marked = np.zeros(len(column), bool)
            marked[row] = True
            rows.refuse(
                marked,
                lambda _, kind=kind, node=node, text=text, label=label: (  # type: ignore[misc]
                    f"duplicate ({kind}, {node}): named {text!r} here and {names[label]!r} before"
                ),
                "the pair (type, id) must name one node",
            )


def read_nodes(path: Path) -> NodeTable:
    """A table of nodes with the columns id, kind and, perhaps, name.

    Raises:
        DataError: with file, line and text; an id that occurs twice.
    """
    beginning = sample(path)
    separator = next((s for s in ("\t", ",", ";") if s in beginning.texts[0]), None)
    header = [] if separator is None else [
        cell.strip().lower() for cell in cells.split(beginning.texts[0], separator)
    ]  # fmt: skip
    at = {name: header.index(name) for name in ("id", "name") if name in header}
    kind = next((header.index(n) for n in ("kind", "type", "node_type") if n in header), None)
    if separator is None or "id" not in at or kind is None:
        raise DataError(
            f"{path}: line 1: a header with id, kind and, perhaps, name is expected: "
            f"{printable(beginning.texts[0])}"
        )
    columns = {"head": at["id"], "head_type": kind}
    if "name" in at:
        columns["head_name"] = at["name"]
    layout = cells.Layout(separator, len(header), columns, tuple(header), beginning.lines[0][0])
    reader, table, _ = separated.open_table(path, layout, beginning.texts[1:])
    column = {role: _trimmed(reader.ids(table, role)) for role in columns}
    for role in ("head", "head_type"):
        _check(reader, role, column[role])
    rows = _Rows(str(path), reader.lines_of_rows, layout.expected())
    texts = np.array(column["head"].values.to_pylist(), object)[column["head"].codes].tolist()
    kinds = np.array(column["head_type"].values.to_pylist(), object)[column["head_type"].codes]
    labels: dict[str, str] = {}
    seen: set[str] = set()
    again = np.zeros(len(texts), bool)
    for row, (text, of) in enumerate(zip(texts, kinds.tolist(), strict=True)):
        label = label_of(of, text)
        again[row] = text in labels or label in seen
        labels[text] = label
        seen.add(label)
    if again.any():
        rows.refuse(
            again,
            lambda row: f"duplicate (type, id): ({kinds[row]}, {texts[row]})",
            "every node stands in the table once",
        )
    names: dict[str, str] = {}
    if "head_name" in column:
        called: Any = np.array(column["head_name"].values.to_pylist(), object)
        called = called[column["head_name"].codes].tolist()
        names = {labels[t]: n for t, n in zip(texts, called, strict=True) if n}
    return NodeTable(path, labels, names, tuple(dict.fromkeys(kinds.tolist())))
