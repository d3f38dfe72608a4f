"""Triples: ``head relation tail`` a line, with or without a header; also Parquet and tables."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import DataOptions
from hasten.data.columns.checks import Problem, Rules, looks_numeric, time_rule
from hasten.data.columns.raw import IdColumn
from hasten.data.columns.text import Sample, file_digest, sample
from hasten.data.readers import cells, separated
from hasten.data.readers.columnar import Columns
from hasten.data.readers.columns import SYNONYMS, TRIPLE_ROLES, find_roles, plain, positional_roles
from hasten.data.readers.interface import Claim
from hasten.data.readers.memory import as_arrow
from hasten.errors import DataError

NAME = "triples"
SUMMARY = "head relation tail a line, or with a header; TSV, CSV, blanks, Parquet; also archives"
_SEPARATORS = ("\t", ",", ";", "|", "::", cells.BLANKS)
_WIDTH = 3
_ORDER = {"head": 0, "relation": 1, "tail": 2}


@dataclass(frozen=True, eq=False)
class TripleColumns:
    """The triples of one file: cells parsed, ids not yet judged. n rows, in file order.

    problems: goes through the file and yields what breaks the given rules; places: where the
    given rows (ascending) stand, with their text. The rest is as in ``readers.seam.Events``.
    """

    source: str
    head: IdColumn
    relation: IdColumn
    tail: IdColumn
    part: NDArray[np.int8] | None
    problems: Callable[[Rules], Iterator[Problem]]
    places: Callable[[Int64], Iterator[tuple[str, str]]]
    expected: str
    header: frozenset[str] = frozenset()
    files: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.head)


def claim(beginning: Sample, options: DataOptions, named: bool) -> Claim | str:
    """How the file would be read as triples, or why it would not.

    named: triples are what is wanted; otherwise only what can be nothing else is claimed.
    """
    if beginning.magic.startswith(b"PAR1"):
        return _claim_parquet(beginning, options)
    if not beginning.lines:
        return "not text"
    separator = _separator(beginning, options)
    if separator is None:
        return "the first line has fewer than three cells"
    header = [cell.strip() for cell in cells.split(beginning.texts[0], separator)]
    if _header_like(header, options):
        return _claim_header(beginning, separator, header, options)
    return _claim_lines(beginning, separator, options, named)


def read_triples(path: Path, options: DataOptions) -> TripleColumns:
    """The triples of a file.

    Raises:
        DataError: what cannot be used, with file, line and text.
    """
    beginning = sample(path)
    claimed = claim(beginning, options, named=True)
    if isinstance(claimed, str):
        raise DataError(f"{path} cannot be read as triples: {claimed}")
    if beginning.magic.startswith(b"PAR1"):
        return _read_parquet(path, claimed)
    layout: cells.Layout = claimed.layout
    lines = beginning.texts[1:] if layout.header_line else beginning.texts
    reader, table, file = separated.open_table(path, layout, lines)
    return TripleColumns(
        source=str(path),
        head=reader.ids(table, "head"),
        relation=reader.ids(table, "relation"),
        tail=reader.ids(table, "tail"),
        part=reader.parts(table),
        problems=reader.problems,
        places=reader.lines_of_rows,
        expected=layout.expected(),
        header=reader.header,
        files=(file,),
        notes=claimed.notes,
    )


def read_triple_table(table: Any, options: DataOptions, name: str) -> TripleColumns:
    """The triples of a table in memory with the columns head, relation and tail."""
    arrow = as_arrow(table, name)
    roles = find_roles(name, arrow.column_names, options.columns, TRIPLE_ROLES)
    if isinstance(roles, str):
        raise DataError(f"{name}: {roles}")
    return _of_arrow(name, arrow, roles)


def _separator(beginning: Sample, options: DataOptions) -> str | None:
    """The first separator that gives the first line three cells or more."""
    chosen = None if options.separator is None else cells.separator_of(options.separator)
    for separator in _SEPARATORS if chosen is None else (chosen,):
        try:
            if len(cells.split(beginning.texts[0], separator)) >= _WIDTH:
                return separator
        except csv.Error:
            continue
    return None


def _header_like(row: list[str], options: DataOptions) -> bool:
    """Whether a first line names the columns of triples."""
    if any(not name.strip().isdecimal() for name in options.columns.values()):
        return True
    if options.columns:
        return False
    return all(any(plain(cell) in SYNONYMS[role] for cell in row) for role in _ORDER)


def _claim_header(
    beginning: Sample, separator: str, header: list[str], options: DataOptions
) -> Claim | str:
    if repeated := {name for name in header if header.count(name) > 1}:
        raise DataError(f"{beginning.path}: the header names {min(repeated)!r} twice")
    roles = find_roles(str(beginning.path), header, options.columns, TRIPLE_ROLES)
    if isinstance(roles, str):
        return roles
    columns = {role: header[i] for role, i in roles.items()}
    unused = [name for name in header if name not in columns.values()]
    number = beginning.lines[0][0]
    return Claim(
        reason=f"a header with the columns {', '.join(columns.values())}",
        details={"separator": separator, "columns": columns, "header": header},
        notes=(f"columns not used: {', '.join(unused)}",) if unused else (),
        layout=cells.Layout(separator, len(header), roles, tuple(header), number),
    )


def _claim_lines(
    beginning: Sample, separator: str, options: DataOptions, named: bool
) -> Claim | str:
    rows = []
    for line in beginning.texts:
        try:
            rows.append(cells.split(line, separator))
        except csv.Error:
            continue
    width = Counter(len(row) for row in rows).most_common(1)[0][0]
    if options.columns:
        roles = positional_roles(options.columns, width, TRIPLE_ROLES)
    elif width == _WIDTH:
        roles = dict(_ORDER)
    elif named:
        raise DataError(
            f"{beginning.path}: {width} cells a line; head relation tail are expected, or say "
            "which is which: --set data.columns.head=1 --set data.columns.relation=2 "
            "--set data.columns.tail=3"
        )
    else:
        return f"{width} cells a line instead of 3"
    if not named and not options.columns:
        if all(any(plain(cell) in SYNONYMS[role] for cell in rows[0]) for role in ("user", "item")):
            return "its header names users and items"
        told = [looks_numeric(row[-1]) or time_rule(row[-1]) != "number" for row in rows]
        if 2 * sum(told) >= len(told):
            return "the last cell is a number or a date, as in events (--format triples says so)"
    order = " ".join(sorted(roles, key=lambda role: roles[role]))
    return Claim(
        reason=f"{width} cells a line and no header",
        details={
            "separator": separator,
            "columns": {role: str(position + 1) for role, position in roles.items()},
        },
        notes=() if options.columns else (f"no header: columns taken as {order}",),
        layout=cells.Layout(separator, width, roles),
    )


def _claim_parquet(beginning: Sample, options: DataOptions) -> Claim | str:
    try:
        names = pq.read_schema(beginning.path).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{beginning.path}: damaged Parquet file ({error})") from error
    roles = find_roles(str(beginning.path), names, options.columns, TRIPLE_ROLES)
    if isinstance(roles, str):
        return roles
    columns = {role: names[i] for role, i in roles.items()}
    details = {"columns": columns, "header": names}
    return Claim(reason="Parquet", details=details, layout=columns)


def _read_parquet(path: Path, claimed: Claim) -> TripleColumns:
    columns: dict[str, str] = claimed.layout
    try:
        table = pq.read_table(path, columns=list(columns.values()), partitioning=None)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: damaged Parquet file ({error})") from error
    roles = {role: table.column_names.index(name) for role, name in columns.items()}
    return replace(_of_arrow(str(path), table, roles), files=(file_digest(path),))


def _of_arrow(source: str, table: pa.Table, roles: dict[str, int]) -> TripleColumns:
    if not table.num_rows:
        raise DataError(f"{source}: 0 rows")
    columns = Columns(source, {role: table.column(i) for role, i in roles.items()})

    def places(rows: Int64) -> Iterator[tuple[str, str]]:
        found = {role: columns.columns[role].take(pa.array(rows)).to_pylist() for role in _ORDER}
        for row, cells_of_row in zip(rows.tolist(), zip(*found.values(), strict=True), strict=True):
            yield f"row {row + 1}", ", ".join(map(str, cells_of_row))

    return TripleColumns(
        source=source,
        head=columns.ids("head"),
        relation=columns.ids("relation"),
        tail=columns.ids("tail"),
        part=columns.parts(),
        problems=columns.problems,
        places=places,
        expected=columns.expected,
    )
