"""First pass over files of typed edges: read in blocks, number nodes and relations, append rows.

What was read is in scratch files, one a column, in the order of the files: the numbers of the
heads, tails and relations (int32).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.data.columns.checks import Rows, broken_rules
from hasten.data.columns.labels import Labels
from hasten.data.graph.load import renamed_elsewhere
from hasten.data.graph_store.node_names import NodeNames
from hasten.data.readers import in_blocks, separated, typed
from hasten.data.readers.ahead import read_ahead
from hasten.data.readers.node_table import (
    LABELS,
    NodeTable,
    is_suspect,
    label_rules,
    labels_for,
    names_of,
)
from hasten.data.readers.table import Table
from hasten.data.readers.typed import ENDS, METAEDGES, PRIMEKG, EdgeFile
from hasten.data.store_folder.buckets import load, spans

#: names of the scratch files
HEAD, TAIL, RELATION = "head", "tail", "relation"
_SHIFT = np.int64(32)
Numbers = NDArray[np.int32]


@dataclass(eq=False)
class Collected:
    """What the first pass read.

    rows: of every file, for messages; ends: the number of rows up to the end of every file; notes,
    files: as of :class:`~hasten.data.readers.interface.Columns`; kinds: relations of every file in
    the order of their first edges. A node is a pair of a type (0 for none, else 1 more than its
    number) and an id, as one number; the numbers of ``pairs`` are in the scratch files.
    """

    folder: Path
    edge_files: list[EdgeFile]
    table: NodeTable | None
    rows: list[Rows]
    ids: Labels
    files: list[dict[str, object]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    kinds: list[list[int]] = field(default_factory=list)
    types: Labels = field(default_factory=Labels)
    pairs: Labels = field(default_factory=Labels)
    relations: Labels = field(default_factory=Labels)
    names: NodeNames = field(default_factory=NodeNames)

    def __len__(self) -> int:
        return self.ends[-1]

    def labels(self) -> pa.Array:
        """The label ``type::id`` of every number of a node.

        Raises:
            DataError: ids and types that cannot be labels, or ids that the table of nodes lacks.
        """
        ids, id_at = _texts(self.ids)
        types, _ = _texts(self.types)
        relations, _ = _texts(self.relations)
        if (
            self._holds_no_labels(ids, (HEAD, TAIL))
            or self._holds_no_labels(types, (f"{HEAD}_type", f"{TAIL}_type"))
            or self._holds_no_labels(relations, (RELATION,))
        ):
            for rows in self.rows:
                rules = label_rules(rows)
                if next(rows.problems(rules), None) is not None:
                    raise broken_rules([rows], rules, "")
        pairs = np.asarray(self.pairs.distinct()[0])
        kind = pairs >> _SHIFT
        texts = ids.take(pa.array(id_at[pairs & 0xFFFFFFFF]))
        if not kind.all():
            self._require_listed(kind == 0, texts)
        if not kind.any():
            return self._looked_up(texts)
        labels = labels_for(types.take(pa.array(np.maximum(kind - 1, 0))), texts)
        untyped = pa.array(kind == 0)
        return pc.replace_with_mask(labels, untyped, self._looked_up(texts.filter(untyped)))

    def _holds_no_labels(self, texts: pa.Array, roles: Sequence[str]) -> bool:
        """Whether some text is no label: in any file, for some of the roles."""
        headers = [rows.rules.header for rows in self.rows]
        cells = {cell for header in headers for role in roles for cell in header.get(role, ())}
        return is_suspect(texts, cells) and any(
            text in cells or LABELS.id_problem(HEAD, text) for text in texts.to_pylist()
        )

    def _looked_up(self, texts: pa.Array) -> pa.Array:
        if self.table is None:
            return texts
        return pa.array([self.table.labels[text] for text in texts.to_pylist()], pa.string())

    def _require_listed(self, untyped: NDArray[np.bool_], texts: pa.Array) -> None:
        """Raise DataError, with the lines, for ids without a label."""
        bad = untyped.copy()
        bad[untyped] = typed.unlisted(texts.filter(pa.array(untyped)).to_pylist(), self.table)
        if not bad.any():
            return
        begin = 0
        for rows, end in zip(self.rows, self.ends, strict=True):
            for name in (HEAD, TAIL):
                path, start = self.folder / name, begin
                marked = np.concatenate([
                    np.flatnonzero(bad[load(path, "int32", *span)]) + span[0] - start
                    for span in spans(begin, end)
                ])  # fmt: skip
                if len(marked):

                    def text_of(row: int, path: Path = path, start: int = start) -> str:
                        return str(texts[int(load(path, "int32", start + row, start + row + 1)[0])])

                    raise typed.unlisted_error(rows, end - begin, marked, text_of, self.table)
            begin = end


def _texts(labels: Labels) -> tuple[pa.Array, Numbers]:
    """The labels as trimmed text, and the place of each number among them."""
    values, numbers = labels.distinct()
    place = np.zeros(int(numbers.max(initial=-1)) + 1, np.int32)
    place[numbers] = np.arange(len(numbers), dtype=np.int32)
    return pc.utf8_trim_whitespace(values.cast(pa.string())), place


def collect(
    files: list[EdgeFile],
    table: NodeTable | None,
    folder: Path,
    report: Callable[[int, int], None],
) -> Collected:
    """Read all files. report: (rows read, all rows). Raises DataError with file, line and text."""
    opened = [separated.blocks(file.beginning, file.claim) for file in files]
    done, total = 0, sum(blocks.total for blocks in opened)
    rows = [blocks.rows for blocks in opened]
    collected = Collected(folder, files, table, rows, Labels(in_blocks.label_limit(total)))
    for file, blocks in zip(files, opened, strict=True):
        collected.files += blocks.files
        collected.notes += blocks.notes
        collected.kinds.append([])
        begin = done
        for group in in_blocks.groups(read_ahead(blocks.tables), in_blocks.GROUP >> 2):
            _append(collected, file, group, done - begin)
            done += sum(map(in_blocks.size, group))
            del group
            pa.default_memory_pool().release_unused()
            report(done, total)
        collected.ends.append(done)
        collected.names.end_of_file()
    report(total, total)
    return collected


def _append(collected: Collected, file: EdgeFile, group: list[Table], row: int) -> None:
    """Append the rows of some blocks of a file; row: the first of them within the file."""
    size = sum(map(in_blocks.size, group))
    ids = collected.ids.codes([table.plain_ids(end) for end in ENDS for table in group])
    if file.form == PRIMEKG:
        cells = [table.plain_ids(f"{end}_type") for end in ENDS for table in group]
        kind = collected.types.codes(cells).astype(np.int64) + 1
    elif file.form == METAEDGES:
        kind = np.zeros(2 * size, np.int64)
    else:
        texts = pa.chunked_array([typed.types_of(file)], pa.string())
        kind = np.repeat(collected.types.codes([texts]).astype(np.int64) + 1, size)
    if file.relation is None:
        relation = collected.relations.codes([table.plain_ids("relation") for table in group])
    else:
        relation = collected.relations.codes([pa.chunked_array([[file.relation]], pa.string())])
        relation = np.repeat(relation, size)
    nodes = collected.pairs.codes([pa.chunked_array([pa.array((kind << _SHIFT) | ids)])])
    columns = {HEAD: nodes[:size], TAIL: nodes[size:], RELATION: relation}
    for name, column in columns.items():
        with (collected.folder / name).open("ab") as stream:
            column.tofile(stream)
    seen = dict.fromkeys(collected.kinds[-1])
    seen |= dict.fromkeys(pc.unique(pa.array(relation)).to_pylist())
    collected.kinds[-1] = list(seen)
    for end in ENDS:
        if f"{end}_name" not in file.claim.layout.columns:
            continue
        start = 0
        for table in group:
            count = in_blocks.size(table)
            numbers = columns[end][start : start + count]
            texts = names_of(table, f"{end}_name")
            if (conflict := collected.names.add(numbers, texts)) is not None:
                _refuse_name(
                    collected, file, row + start + conflict, numbers[conflict], texts[conflict]
                )
            start += count


def _refuse_name(
    collected: Collected, file: EdgeFile, row: int, number: np.int32, now: pa.Scalar
) -> NoReturn:
    """Raise the error about a node with a second name, in this row of the file."""
    label = collected.labels()[int(number)]
    before, same_file = collected.names.name_of(int(number))
    if same_file:
        raise typed.renamed(collected.rows[len(collected.ends)], label, now, before, row)
    raise renamed_elsewhere(file.path, label.as_py(), now.as_py(), before.as_py())
