"""Load interactions with a table of item attributes, for sequential models."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hasten.arrays import Int64
from hasten.config import SequenceOptions
from hasten.data.columns.checks import counted
from hasten.data.columns.text import checked_lines, file_digest
from hasten.data.interactions.load import load_dataset
from hasten.data.item_features import ItemFeatures, Kind
from hasten.data.readers import cells
from hasten.data.readers.columns import SYNONYMS, plain
from hasten.data.readers.recbole import atomic_header
from hasten.data.sources.files import resolve
from hasten.data.tables import TRAIN, Dataset, Vocabulary
from hasten.errors import DataError, did_you_mean

_SEPARATORS = ("\t", ",", ";", "::")
_TYPES: Mapping[str, Kind] = {"token": "category", "token_seq": "categories", "float": "number"}
#: a column of texts is left out if it has more values than this share of its items: a title
_DISTINCT = 0.8
#: a column of an item table: its cells, each a list of texts (or of one number)
Cells = list[list[str]]


def load_sequences(options: SequenceOptions, seed: int, table: object | None = None) -> Dataset:
    """Load interactions (or take a table of them), with the features of items if a file is named.

    Items of that file without interactions are candidates too.

    Raises:
        DataError: what is wrong, with file, line and column.
    """
    return with_features(load_dataset(options, seed, table), options)


def with_features(dataset: Dataset, options: SequenceOptions) -> Dataset:
    """The dataset with the features of its items; the same if no file is named."""
    if options.item_features is None:
        return dataset
    folder = None if options.path is None else Path(options.path)
    path = resolve("item_features", options.item_features, folder)
    ids, columns, kinds = _read(path)
    found, left_out = _chosen(path, columns, kinds, options.item_columns)
    dataset, rows = _with_items(path, dataset, ids)
    features = encoded(path, dataset, rows, columns, found)
    missing = len(dataset.items) - len(set(rows.tolist()))
    sizes = dict.fromkeys((name for name, _ in features.columns), 0)
    for value in features.values.to_pylist():
        sizes[value.partition("=")[0]] += 1
    words = (
        f"{name} (number)" if kind == "number" else f"{name} ({sizes[name]:,} values)"
        for name, kind in features.columns
    )
    notes = [f"item features of {path.name}: {', '.join(words)}"]
    notes += [f"{path.name}: column {name} left out: a value for nearly every item"
              for name in left_out]  # fmt: skip
    if missing:
        notes.append(f"{counted(missing, 'item')} of {len(dataset.items):,} without features")
    source = dataset.source.plus(notes, [file_digest(path)], item_features=dict(features.columns))
    return replace(dataset, item_features=features, source=source)


def _read(path: Path) -> tuple[pa.Array, dict[str, Cells], dict[str, Kind]]:
    """The ids as text, the cells of the other columns by name, and the kinds that are given."""
    kinds: dict[str, Kind] = {}
    if path.suffix in (".parquet", ".pq"):
        table = pq.read_table(path, partitioning=None)
        names = table.column_names
        columns = [_of_arrow(table.column(name)) for name in names]
        kinds = {
            n: "categories" for n in names if isinstance(table.schema.field(n).type, pa.ListType)
        }
        lines = list(range(1, len(table) + 1))
        where = "row"
    else:
        (_, first), *rest = checked_lines(path)
        typed = atomic_header(first, "\t")
        separator = "\t" if typed else cells.fitting(first, _SEPARATORS)
        if separator is None:
            raise DataError(f"{path}: line 1: a header with item_id and other columns is expected")
        names = [name for name, _ in typed or ()] or cells.stripped(first, separator)
        kinds = {name: _TYPES.get(kind, "categories") for name, kind in typed or ()}
        texts = [_split(path, number, line, separator, len(names)) for number, line in rest]
        blank = {name for name, kind in typed or () if kind.endswith("_seq")}
        columns = [
            [_parts(row[i], " " if name in blank else "|") for row in texts]
            for i, name in enumerate(names)
        ]
        lines, where = [number for number, _ in rest], "line"
    at = [i for i, name in enumerate(names) if plain(name) in SYNONYMS["item"] | {"id"}]
    if len(at) != 1 or len(set(names)) < len(names):
        raise DataError(
            f"{path}: the columns {', '.join(names)}: one of them must be item_id (or item, "
            "movie_id, asin, ...), and each name must stand there once"
        )
    ids = ["|".join(cell) for cell in columns[at[0]]]
    seen: dict[str, int] = {}
    for number, label in zip(lines, ids, strict=True):
        if not label or label in seen:
            wrong = f"item {label!r} is in {where} {seen[label]} too" if label else "no item id"
            raise DataError(f"{path}: {where} {number}: {wrong}")
        seen[label] = number
    others = {name: column for i, (name, column) in enumerate(zip(names, columns, strict=True))
              if i != at[0]}  # fmt: skip
    return pa.array(ids, pa.string()), others, kinds


def _of_arrow(column: pa.ChunkedArray) -> Cells:
    """Of a column of Parquet; missing values and NaN are empty cells."""
    rows = [value if isinstance(value, list) else [value] for value in column.to_pylist()]
    texts = [["" if value is None else str(value).strip() for value in row] for row in rows]
    return [[text for text in row if text not in ("", "nan")] for row in texts]


def _split(path: Path, number: int, line: str, separator: str, width: int) -> list[str]:
    try:
        row = cells.split(line, separator)
    except csv.Error as error:
        raise DataError(f"{path}: line {number}: {error}: {line!r}") from error
    if len(row) != width:
        raise DataError(f"{path}: line {number}: {len(row)} cells, the header has {width}")
    return row


def _parts(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def _chosen(
    path: Path, columns: Mapping[str, Cells], given: Mapping[str, Kind], asked: Mapping[str, Kind]
) -> tuple[dict[str, Kind], list[str]]:
    """The kinds of the columns in use, and the names of those that are left out."""
    for name in asked:
        if name not in columns:
            raise DataError(
                f"{path}: no column {name!r}, only {', '.join(columns)}"
                f"{did_you_mean(name, columns)}"
            )
    if asked:
        return dict(asked), []
    found: dict[str, Kind] = {}
    left_out = []
    for name, column in columns.items():
        filled = [cell for cell in column if cell]
        kind = given.get(name)
        if kind is None:
            kind = "categories" if any(len(cell) > 1 for cell in filled) else "category"
            if filled and kind == "category" and all(_number(c[0]) is not None for c in filled):
                kind = "number"
        distinct = len({value for cell in filled for value in cell})
        if kind != "number" and distinct > _DISTINCT * len(filled):
            left_out.append(name)
        elif filled:
            found[name] = kind
    if not found:
        raise DataError(
            f"{path}: no column can be a feature: each has a value for nearly every item, or is "
            "empty; name some by --set data.item_columns.NAME=category"
        )
    return found, left_out


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _with_items(path: Path, dataset: Dataset, ids: pa.Array) -> tuple[Dataset, Int64]:
    """The dataset with all items of the table, and the item of each of its rows."""
    labels = dataset.items.labels
    if dataset.items.numeric:
        try:
            ids = ids.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{path}: the items of the interactions are numbers, those of the table are not "
                f"({error}); --set data.ids=labels reads both as text"
            ) from error
    known = Vocabulary(labels.cast(ids.type))
    rows = known.index(ids)
    if not (rows >= 0).any():
        raise DataError(
            f"{path}: no item of the interactions is in it (items {labels[0].as_py()!r}, ..., "
            f"in the table {ids[0].as_py()!r}, ...)"
        )
    new = ids.filter(pa.array(rows < 0))
    if not len(new):
        return dataset, rows
    rows[rows < 0] = np.arange(len(new)) + len(labels)
    items = pa.concat_arrays([known.labels, new]).cast(labels.type)
    names = dataset.items.names
    if names is not None:
        names = pa.concat_arrays([names, pa.nulls(len(new), names.type)])
    note = f"{counted(len(new), 'item')} with features and without interactions"
    source = dataset.source.plus([note], items=len(items))
    return replace(dataset, items=Vocabulary(items, names), source=source), rows


def encoded(
    path: Path,
    dataset: Dataset,
    rows: Int64,
    columns: Mapping[str, Cells],
    kinds: Mapping[str, Kind],
) -> ItemFeatures:
    """The features of the items ``rows`` from the cells of these columns."""
    trained = np.zeros(len(dataset.items), bool)
    trained[dataset.interactions.item[dataset.part == TRAIN]] = True
    values: list[str] = []
    entries: list[tuple[Any, Any, Any]] = []
    scale: dict[str, tuple[float, float]] = {}
    for name, kind in kinds.items():
        column = columns[name]
        counts = np.array([len(cell) for cell in column], np.int64)
        if kind == "number":
            numbers = np.array([_as_number(path, name, cell) for cell in column])
            filled = ~np.isnan(numbers)
            known = numbers[filled & trained[rows]]
            mean, deviation = (float(known.mean()), float(known.std())) if len(known) else (0, 0)
            scale[name] = mean, deviation or 1.0
            weight = (numbers[filled] - mean) / scale[name][1]
            entries.append((rows[filled], np.full(len(weight), len(values)), weight))
            values.append(name)
            continue
        if kind == "category" and (counts > 1).any():
            column = [["|".join(cell)] if cell else [] for cell in column]
            counts = np.minimum(counts, 1)
        flat = pa.array([value for cell in column for value in cell], pa.string())
        listed = pc.unique(flat)
        listed = listed.take(pc.array_sort_indices(listed))
        code = np.asarray(pc.index_in(flat, value_set=listed), np.int64) + len(values)
        entries.append(
            (np.repeat(rows, counts), code, np.repeat(1 / np.maximum(counts, 1), counts))
        )
        values += [f"{name}={value}" for value in listed.to_pylist()]
    item, value, weight = (np.concatenate(each) for each in zip(*entries, strict=True))
    order = np.argsort(item, kind="stable")
    return ItemFeatures(
        pa.array(values, pa.string()),
        item[order],
        value[order],
        weight[order].astype(np.float32),
        tuple(kinds.items()),
        scale,
    )


def _as_number(path: Path, name: str, cell: Sequence[str]) -> float:
    if not cell:
        return float("nan")
    value = _number(cell[0]) if len(cell) == 1 else None
    if value is None:
        raise DataError(f"{path}: column {name}: {'|'.join(cell)!r} is not a number")
    return value
