"""Feature files, one row per item: ``.npy`` (pickles are never loaded) or Parquet.

Row i of an ``.npy`` file is item i. A Parquet file has one column per feature, or one column of
lists. With an item column its rows may have any order; without one, row i is item i.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hasten.arrays import Int64, repeats
from hasten.data.columns.checks import counted
from hasten.data.columns.text import require_file
from hasten.data.readers.columns import SYNONYMS, plain
from hasten.data.tables import Matrix
from hasten.errors import DataError

_SHOWN = 5
_ROWS = 4096
_MAGIC = b"\x93NUMPY"
_AS_NUMBERS = "save it as numbers: numpy.save(FILE, array.astype('float32'))"


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """A file of features. values: [rows, d], possibly memory-mapped.

    items: the id of every row as text; None: row i is item i. made: computed, not read from a file.
    """

    path: Path
    values: NDArray[Any]
    items: pa.Array | None
    made: bool = False

    def rows_of(self, labels: pa.Array) -> Int64:
        """The row of every item by its label, -1 if it has none.

        Raises:
            DataError: rows have numbers, but items have labels.
        """
        if self.items is not None:
            positions = pc.index_in(labels.cast(pa.string()), value_set=self.items)
            return np.asarray(pc.fill_null(positions, -1), np.int64)
        if not pa.types.is_integer(labels.type):
            raise DataError(
                f"{self.path}: row i is item i, but the items are called {labels[0].as_py()!r}, "
                "...: give Parquet with a column item_id, or events with numbers"
            )
        number = np.asarray(labels, np.int64)
        return np.where((number >= 0) & (number < len(self.values)), number, -1)

    @property
    def kind(self) -> Any:
        """The type that values are taken as: float16 as it is, everything else as float32."""
        return np.float16 if self.values.dtype == np.float16 else np.float32

    def taken(self, rows: Int64, make: Callable[..., NDArray[Any]] = np.empty) -> Matrix:
        """The values of these rows, in an array that ``make`` makes from a shape and a type.

        Raises:
            DataError: values that are not finite, with row and column.
        """
        out = make((len(rows), self.values.shape[1]), self.kind)
        bad: list[str] = []
        count = 0
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            with np.errstate(over="ignore"):
                out[start : start + len(part)] = self.values[part]
            block = out[start : start + len(part)]
            nonfinite = np.argwhere(~np.isfinite(block))
            count += len(nonfinite)
            for row, column in nonfinite[: _SHOWN - len(bad)]:
                value = self.values[part[row], column]
                bad.append(f"  row {part[row]:,}, column {column:,} (both from 0): {value}")
        if count:
            more = f"\n  ... and {count - len(bad):,} more" if count > len(bad) else ""
            values = counted(count, "value")
            verb = "is no finite number" if count == 1 else "are no finite numbers"
            raise DataError(
                f"{self.path}: {values} {verb}:\n" + "\n".join(bad) + more + "\n"
                "leave these items out, or give them a row of zeros"
            )
        return out


def open_features(path: Path) -> FeatureFile:
    """Open a file and check its shape and type. Values are read when they are taken.

    Raises:
        DataError: no such file, not a matrix of numbers, or an item with two rows.
    """
    require_file(path)
    return _npy(path) if path.suffix == ".npy" else _parquet(path)


def _npy(path: Path) -> FeatureFile:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise DataError(f"{path}: no .npy file by its first bytes; {_AS_NUMBERS}")
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        if "pickle" in str(error).lower() or "object" in str(error).lower():
            raise DataError(
                f"{path}: holds Python objects or a pickle, which is never loaded; {_AS_NUMBERS}"
            ) from error
        raise DataError(f"{path}: no whole .npy file ({error})") from error
    return FeatureFile(path, _matrix(path, values), None)


def _matrix(path: Path, values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind not in "fiu":
        raise DataError(f"{path}: values of type {values.dtype}, not numbers; {_AS_NUMBERS}")
    if values.ndim != 2 or not values.size:
        shape = " x ".join(map(str, values.shape)) or "one number"
        raise DataError(f"{path}: shape {shape}; a row an item and a column a feature are expected")
    return values


def _parquet(path: Path) -> FeatureFile:
    try:
        table = pq.read_table(path, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: no whole Parquet file ({error})") from error
    ids = [n for n in table.column_names if plain(n) in SYNONYMS["item"] | {"id"}]
    if len(ids) > 1:
        raise DataError(f"{path}: the item could be column {' or '.join(map(repr, ids))}")
    items = table.column(ids[0]).combine_chunks().cast(pa.string()) if ids else None
    feature_names = [n for n in table.column_names if n not in ids]
    if items is not None:
        _once(path, items)
    return FeatureFile(path, _matrix(path, _values(path, table, feature_names)), items)


def _once(path: Path, items: pa.Array) -> None:
    if items.null_count:
        raise DataError(f"{path}: {counted(items.null_count, 'row')} without an item")
    repeated = np.flatnonzero(repeats(np.asarray(items.dictionary_encode().indices)))
    if len(repeated):
        raise DataError(
            f"{path}: row {repeated[0]:,} (from 0): item {items[int(repeated[0])].as_py()!r} again "
            f"({counted(len(repeated), 'row')} in all); one row an item is expected"
        )


def _values(path: Path, table: pa.Table, names: list[str]) -> NDArray[Any]:
    columns = [table.column(name) for name in names]
    nulls = {name: c.null_count for name, c in zip(names, columns, strict=True) if c.null_count}
    if nulls:
        name, count = next(iter(nulls.items()))
        raise DataError(f"{path}: column {name!r} has {counted(count, 'empty cell')}")
    if len(columns) == 1 and pa.types.is_nested(columns[0].type):
        lists = columns[0].combine_chunks()
        lengths = np.asarray(pc.list_value_length(lists))
        if len(np.unique(lengths)) > 1:
            odd = int(np.flatnonzero(lengths != lengths[0])[0])
            raise DataError(
                f"{path}: row {odd:,} (from 0) has {lengths[odd]:,} features, row 0 {lengths[0]:,}"
            )
        flat = pc.list_flatten(lists)
        if flat.null_count:
            raise DataError(f"{path}: {counted(flat.null_count, 'empty cell')} among the features")
        if not _numbers(flat.type):
            raise DataError(f"{path}: lists of {flat.type}, not of numbers")
        return np.asarray(flat).reshape(len(lists), -1)
    if wrong := [n for n, c in zip(names, columns, strict=True) if not _numbers(c.type)]:
        raise DataError(f"{path}: column {wrong[0]!r} holds no numbers, and is not the item's")
    if not columns:
        raise DataError(f"{path}: no column of features")
    return np.stack([c.to_numpy() for c in columns], axis=1)


def _numbers(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def notes_on(values: Matrix) -> Iterator[str]:
    """Notes on suspicious rows: all zero, or equal to those of another item."""
    zero = int((~values.any(axis=1)).sum())
    if zero:
        yield f"{counted(zero, 'item')} whose features are all zero"
    seen = {hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in values}
    duplicates = len(values) - len(seen) - max(zero - 1, 0)
    if duplicates:
        yield f"{counted(duplicates, 'item')} with the features of another"
