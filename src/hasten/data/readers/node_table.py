"""Tables of nodes: the columns id, kind and, optionally, name; and the labels ``type::id``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.data.columns.checks import (
    MISSING_WORDS,
    NAME_ROLES,
    Rows,
    Rules,
    bad_rows,
    broken_rules,
    printable,
)
from hasten.data.columns.ids import IdColumn
from hasten.data.columns.text import sample
from hasten.data.readers import cells, separated
from hasten.data.readers.table import Table
from hasten.data.tables import TYPE_MARK
from hasten.errors import DataError

LABELS = Rules(dict.fromkeys(("head", "relation", "tail", "head_type", "tail_type"), "labels"))
_KINDS = ("kind", "type", "node_type")


@dataclass(eq=False)
class NodeTable:
    """The nodes that a table lists: id text -> its label ``type::id``; label -> name."""

    path: Path
    labels: dict[str, str]
    names: dict[str, str]
    types: tuple[str, ...]


def label_of(kind: str, name: str) -> str:
    """``type::id``; an id that is written so already stays."""
    return name if name.startswith(kind + TYPE_MARK) else kind + TYPE_MARK + name


def labels_for(kinds: pa.Array, names: pa.Array) -> pa.Array:
    """:func:`label_of` each pair of a kind and a name."""
    labels = pc.binary_join_element_wise(kinds, names, TYPE_MARK)
    written = pc.match_substring(names, TYPE_MARK)  # perhaps written as labels already
    if not pc.any(written).as_py():
        return labels
    pairs = zip(kinds.filter(written).to_pylist(), names.filter(written).to_pylist(), strict=True)
    return pc.replace_with_mask(labels, written, pa.array([label_of(*pair) for pair in pairs]))


def unified(codes: NDArray[np.int32], values: pa.Array) -> IdColumn:
    """A column whose values may have become equal to others of them."""
    encoded = values.dictionary_encode()
    return IdColumn(np.asarray(encoded.indices, np.int32)[codes], encoded.dictionary)


def labels_of(table: Table) -> dict[str, IdColumn]:
    """The columns of a table as trimmed text, by role; without names.

    Raises:
        DataError: ids that are empty, cannot be printed, look like missing values or are those of
            the header.
    """
    columns, rules = {}, label_rules(table.rows)
    for role in table.columns:
        if role in NAME_ROLES:
            continue
        column = table.ids(role)
        values = column.values.cast(pa.string())
        texts = pc.utf8_trim_whitespace(values)
        same = texts.equals(values)
        columns[role] = IdColumn(column.codes, texts) if same else unified(column.codes, texts)
        suspect = is_suspect(texts, rules.header.get(role, ()))
        if suspect and any(rules.id_problem(role, text) for text in texts.to_pylist()):
            raise broken_rules([table.rows], rules, "")
    return columns


def names_of(table: Table, role: str) -> pa.Array:
    """A column of names as trimmed text [rows]: large_string."""
    column = table.columns[role]
    if not pa.types.is_string(column.type) or column.null_count:
        encoded = table.ids(role)
        column = pa.chunked_array([encoded.values.take(pa.array(encoded.codes))])
    return pc.utf8_trim_whitespace(column.cast(pa.large_string())).combine_chunks()


def label_rules(rows: Rows) -> Rules:
    """The rules for the labels of a file: those of its header are none."""
    return replace(LABELS, header=rows.rules.header)


def is_suspect(texts: pa.Array, header: Iterable[str] = ()) -> bool:
    """Whether some text may be no label, by the rules of Arrow for what can be printed.

    header: texts of the header, which are no labels.
    """
    refused = pa.array(["", *MISSING_WORDS, *(cell.lower() for cell in header)], pa.string())
    listed = pc.any(pc.is_in(pc.utf8_lower(texts), value_set=refused)).as_py()
    return bool(listed or not pc.all(pc.utf8_is_printable(texts)).as_py())


def read_nodes(path: Path) -> NodeTable:
    """A table of nodes.

    Raises:
        DataError: with file, line and text; an id that occurs twice.
    """
    beginning = sample(path)
    first = beginning.texts[0]
    separator = next((s for s in ("\t", ",", ";") if s in first), "\t")
    header = [cell.lower() for cell in cells.stripped(first, separator)]
    kind = next((name for name in _KINDS if name in header), None)
    if "id" not in header or kind is None:
        raise DataError(
            f"{path}: line 1: a header with id, kind and, perhaps, name is expected: "
            f"{printable(first)}"
        )
    roles = {"head": header.index("id"), "head_type": header.index(kind)}
    if "name" in header:
        roles["head_name"] = header.index("name")
    layout = cells.Layout(separator, len(header), roles, tuple(header), beginning.lines[0][0])
    table = separated.open_table(beginning, layout)
    columns = labels_of(table)
    rows = {role: np.array(c.texts(), object)[c.codes].tolist() for role, c in columns.items()}
    texts, kinds = rows["head"], rows["head_type"]
    labels: dict[str, str] = {}
    seen: set[str] = set()
    duplicates = []
    for row, (text, of) in enumerate(zip(texts, kinds, strict=True)):
        label = label_of(of, text)
        if text in labels or label in seen:
            duplicates.append(row)
        labels[text] = label
        seen.add(label)
    if duplicates:
        raise bad_rows(
            [(table.rows, len(texts))],
            np.array(duplicates),
            lambda row: f"duplicate (type, id): ({kinds[row]}, {texts[row]})",
            "every node stands in the table once",
        )
    has_names = "head_name" in table.columns
    called = names_of(table, "head_name").to_pylist() if has_names else [""] * len(texts)
    names = {labels[text]: name for text, name in zip(texts, called, strict=True) if name}
    return NodeTable(path, labels, names, tuple(dict.fromkeys(kinds)))
