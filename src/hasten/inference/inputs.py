"""Read ids, histories and queries from files or the command line."""

from __future__ import annotations

import csv
import errno
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hasten.errors import DataError, UsageError

USER, ITEM, TIME = "user_id", "item_id", "timestamp"
_FILE_ENDINGS = (".csv", ".tsv", ".txt", ".parquet")

TRIPLE = ("head", "relation", "tail")

Cells = dict[str, str]


def read_labels(source: str, column: str) -> list[str]:
    """Ids from ``a,b,c`` or from a file, in order and without repeats.

    A file has one id a line, or a header with this column (CSV, TSV), or the column in Parquet.
    Raises DataError or UsageError.
    """
    path = Path(source)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        is_file = is_folder = False  # a list of many labels
    if is_file:
        labels = _labels_of(path, column)
    elif is_folder or path.suffix.lower() in _FILE_ENDINGS:
        raise DataError(f"{path}: no such file; expected a list of {column}s, one a line")
    else:
        labels = split_labels(source)
    if not labels:
        raise DataError(f"{source or 'an empty text'}: 0 {column}s")
    return list(dict.fromkeys(labels))


def split_labels(text: str) -> list[str]:
    """``a, b,c`` as three labels."""
    return [label for part in text.split(",") if (label := part.strip())]


def read_histories(
    path: Path, columns: tuple[str, ...] = ()
) -> tuple[
    dict[str, list[str]], dict[str, list[float]] | None, dict[str, dict[str, list[str]]] | None
]:
    """Items of new histories by user, from a table user_id, item_id[, timestamp, ...].

    Also their times, and the cells of those of ``columns`` that the file has, by column and user.
    All in the order of the file; without these columns there are None. Raises DataError with file
    and line.
    """
    histories: dict[str, list[str]] = {}
    times: dict[str, list[float]] = {}
    features: dict[str, dict[str, list[str]]] = {}
    for place, cells in _rows(path, (USER, ITEM), (TIME, *columns)):
        for column in (USER, ITEM):
            if not cells[column].strip():
                raise DataError(f"{path}, {place}: {column} is empty")
        user = cells[USER].strip()
        histories.setdefault(user, []).append(cells[ITEM].strip())
        if TIME in cells:
            times.setdefault(user, []).append(_time(f"{path}, {place}", cells[TIME]))
        for name in columns:
            if name in cells:
                features.setdefault(name, {}).setdefault(user, []).append(cells[name])
    if not histories:
        raise DataError(f"{path}: 0 events; expected {USER},{ITEM}[,{TIME}] with a row an event")
    return histories, times or None, features or None


def split_times(text: str) -> list[float]:
    """``10,20.5`` as two times. Raises DataError."""
    return [_time("--history-times", part) for part in split_labels(text)]


def _time(where: str, text: str) -> float:
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {TIME} {text!r} is not a number")
    return value


def read_questions(path: Path) -> list[dict[str, str]]:
    """Queries of a table with two or three of the columns head, relation and tail.

    In each row exactly one of the three is missing. Raises DataError with file and line.
    """
    questions = []
    for place, cells in _rows(path, (), TRIPLE):
        question = {name: cells.get(name, "").strip() for name in TRIPLE}
        question = {name: text for name, text in question.items() if text}
        if len(question) != 2:
            raise DataError(
                f"{path}, {place}: {len(question)} of head, relation and tail are given; two of "
                "them ask for the third"
            )
        questions.append(question)
    if not questions:
        raise DataError(f"{path}: 0 questions; expected two of head, relation, tail in a row each")
    return questions


def read_events(path: Path) -> list[tuple[str, ...]]:
    """(user,) or (user, item) of each row of a table with user_id and perhaps item_id.

    Raises DataError with file and line.
    """
    events = []
    for place, cells in _rows(path, (USER,), (ITEM,)):
        event = tuple(cells[name].strip() for name in (USER, ITEM) if name in cells)
        if not all(event):
            raise DataError(f"{path}, {place}: an empty cell; expected {USER}[,{ITEM}]")
        events.append(event)
    if not events:
        raise DataError(f"{path}: 0 events; expected {USER}[,{ITEM}] with a row an event")
    return events


def read_pairs(path: Path, first: str, second: str) -> list[tuple[str, str]]:
    """Both columns of each row of a table. Raises DataError with file and line."""
    pairs = []
    for place, cells in _rows(path, (first, second)):
        pair = cells[first].strip(), cells[second].strip()
        if not all(pair):
            raise DataError(f"{path}, {place}: an empty cell; expected {first},{second}")
        pairs.append(pair)
    if not pairs:
        raise DataError(f"{path}: 0 rows; expected {first},{second} in a row each")
    return pairs


def _labels_of(path: Path, column: str) -> list[str]:
    if path.suffix.lower() == ".parquet":
        return [cells[column] for _, cells in _rows(path, (column,))]
    lines = _text(path).split("\n")
    if lines and column in _cells(lines[0]):
        labels = [cells[column].strip() for _, cells in _rows(path, (column,))]
    else:
        labels = [line.strip() for line in lines]
    return [label for label in labels if label]


def _rows(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...] = (TIME,)
) -> Iterator[tuple[str, Cells]]:
    """(place, cells by column) of each row of a table with a header."""
    if path.suffix.lower() == ".parquet":
        yield from _parquet_rows(path, required, optional)
        return
    text = _text(path)
    first = text.partition("\n")[0]
    header = _cells(first)
    _require(path, header, required)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(first), strict=True)
    try:
        next(reader, None)
        for row in reader:
            if not row:
                continue
            place = f"line {reader.line_num}"
            if len(row) != len(header):
                raise DataError(
                    f"{path}, {place}: {len(row)} cells, expected {len(header)} "
                    f"({', '.join(header)})"
                )
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error


def _parquet_rows(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...]
) -> Iterator[tuple[str, Cells]]:
    import pyarrow as pa  # noqa: PLC0415 - only for this format
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        names = pq.read_schema(path).names
        _require(path, names, required)
        column_names = [name for name in (*required, *optional) if name in names]
        columns: dict[str, list[Any]] = pq.read_table(path, columns=column_names).to_pydict()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    for number, row in enumerate(zip(*columns.values(), strict=True), 1):
        cells = {n: "" if v is None else str(v) for n, v in zip(columns, row, strict=True)}
        yield f"row {number}", cells


def _require(path: Path, header: list[str], required: tuple[str, ...]) -> None:
    missing = [name for name in required if name not in header]
    if missing:
        raise DataError(
            f"{path}: no column {', '.join(missing)}; its columns are: {', '.join(header)[:200]}"
        )


def _cells(line: str) -> list[str]:
    row = next(csv.reader([line.rstrip("\r")], delimiter=_separator(line)), [])
    return [cell.strip() for cell in row]


def _separator(header: str) -> str:
    return "\t" if "\t" in header else ","


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
