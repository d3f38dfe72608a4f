"""Triples: one ``head relation tail`` per line, with or without a header; also Parquet."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.config import DataOptions
from hasten.data.columns.checks import looks_numeric, time_rule
from hasten.data.columns.text import Sample, file_digest, require_file, sample
from hasten.data.readers import cells, separated
from hasten.data.readers.arrow import MAGIC, claim_parquet, open_arrow, open_parquet
from hasten.data.readers.columns import (
    SYNONYMS,
    TRIPLE_ROLES,
    check_distinct,
    find_roles,
    plain,
    positional_roles,
)
from hasten.data.readers.interface import (
    Claim,
    Columns,
    header_claim,
    order_note,
    position_claim,
)
from hasten.data.readers.recbole import atomic_header
from hasten.data.readers.table import Table
from hasten.errors import DataError

NAME = "triples"
SUMMARY = "head relation tail a line, or with a header; TSV, CSV, blanks, Parquet, .npy; archives"
_SEPARATORS = ("\t", ",", ";", "|", "::", cells.BLANKS)
_WIDTH = 3
#: lines from which on triples of numbers can be told from interactions
_ENOUGH = 20
_ORDER = {"head": 0, "relation": 1, "tail": 2}


def claim(beginning: Sample, options: DataOptions, named: bool) -> Claim | str:
    """How the file is read as triples, or the reason why it cannot be.

    named: the user asked for triples; otherwise claim only what cannot be interactions.
    """
    if beginning.magic.startswith(MAGIC):
        return claim_parquet(beginning.path, options, TRIPLE_ROLES)
    if not beginning.lines:
        return "not text"
    first = beginning.texts[0]
    separator = cells.fitting(first, cells.separators(options.separator, _SEPARATORS), _WIDTH)
    if separator is None:
        return "the first line has fewer than three cells"
    header = cells.stripped(first, separator)
    typed = None if options.columns else atomic_header(first, separator)
    names = [name for name, _ in typed] if typed else header
    if not _header_like(names, options):
        return _claim_lines(beginning, separator, options, named)
    check_distinct(str(beginning.path), header)
    roles = find_roles(str(beginning.path), names, options.columns, TRIPLE_ROLES)
    if isinstance(roles, str):
        return roles
    return header_claim(None, header, roles, (separator, header, beginning.lines[0][0]))


def recognize(path: Path, options: DataOptions) -> tuple[Sample, Claim]:
    """How a file is read as triples. Raises DataError if it cannot be."""
    if is_array(path):
        return Sample(path, b""), Claim("a numpy array with the columns head, relation, tail")
    beginning = sample(path)
    claimed = claim(beginning, options, named=True)
    if isinstance(claimed, str):
        raise DataError(f"{path} cannot be read as triples: {claimed}")
    return beginning, claimed


def read_triples(path: Path, options: DataOptions) -> Columns:
    """Read the triples of a file."""
    if is_array(path):
        table = pa.table(dict(zip(_ORDER, open_array(path).T, strict=True)))
        opened = open_arrow(str(path), table, _ORDER)
        return Table(opened.rows, opened.columns, (file_digest(path),)).parsed()
    beginning, claimed = recognize(path, options)
    if beginning.magic.startswith(MAGIC):
        return open_parquet(path, claimed).parsed()
    return separated.open_table(beginning, claimed.layout, claimed.notes).parsed()


def is_array(path: Path) -> bool:
    """Whether a file is a numpy array, by its name."""
    return path.suffix.lower() == ".npy"


def open_array(path: Path) -> NDArray[np.int64]:
    """The triples of an array, int64 [n, 3]. Raises DataError."""
    require_file(path)
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: no whole .npy file of numbers ({error})") from error
    if array.ndim != 2 or array.shape[1] != _WIDTH or array.dtype.kind not in "iu":
        shape = " x ".join(map(str, array.shape))
        raise DataError(
            f"{path}: {shape} values of type {array.dtype}; triples are whole numbers, with head, "
            "relation and tail as columns"
        )
    return np.ascontiguousarray(array, np.int64)


def _header_like(row: list[str], options: DataOptions) -> bool:
    """Whether a first line names the columns of triples."""
    if any(not name.strip().isdecimal() for name in options.columns.values()):
        return True
    if options.columns:
        return False
    return all(any(plain(cell) in SYNONYMS[role] for cell in row) for role in _ORDER)


def _claim_lines(
    beginning: Sample, separator: str, options: DataOptions, named: bool
) -> Claim | str:
    rows = cells.rows_of(beginning.texts, separator)
    width = Counter(len(row) for row in rows).most_common(1)[0][0]
    # a separator at the end of every line
    fourth = "".join("".join(row[_WIDTH : _WIDTH + 1]) for row in rows).strip()
    ends_blank = width == _WIDTH + 1 and not fourth
    if options.columns:
        roles = positional_roles(options.columns, width, TRIPLE_ROLES)
    elif width == _WIDTH or ends_blank:
        roles = dict(_ORDER)
    elif named:
        raise DataError(
            f"{beginning.path}: {width} cells a line; head relation tail are expected, or say "
            "which is which: --set data.columns.head=1 --set data.columns.relation=2 "
            "--set data.columns.tail=3"
        )
    else:
        return f"{width} cells a line instead of 3"
    if not options.columns:
        if all(any(plain(cell) in SYNONYMS[role] for cell in rows[0]) for role in ("user", "item")):
            return "its header names users and items"
        rows = [row[:_WIDTH] for row in rows]
        are_labels = [looks_numeric(row[-1]) or time_rule(row[-1]) != "number" for row in rows]
        if not named and 2 * sum(are_labels) >= len(are_labels) and not _numbered(rows):
            return (
                "the last cell is a number or a date, as in interactions (choose --format triples)"
            )
    notes = () if options.columns else (order_note(roles),)
    return position_claim(separator, width, roles, notes)


def _numbered(rows: list[list[str]]) -> bool:
    """Whether lines of three whole numbers are more likely triples than interactions.

    Triples have few relations between many tails, while ratings are fewer than items. Tails are
    of the range of the heads, or in no order, while a user's times are neither.
    """
    if len(rows) < _ENOUGH or not all(re.fullmatch("-?[0-9]{1,19}", c) for r in rows for c in r):
        return False
    heads, relations, tails = ([int(cell) for cell in column] for column in zip(*rows, strict=True))
    alike = max(heads) <= 2 * max(tails) <= 4 * max(heads)
    pairs = pairwise(zip(heads, tails, strict=True))
    falls = sum(head == again and later < tail for (head, tail), (again, later) in pairs)
    few = 2 * len(set(relations)) <= len(set(tails))
    return few and (alike or falls > len(rows) / 100)
