"""Rows of the stored data that are excluded from training, in an updated run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from hasten.atomic_write import atomic_path
from hasten.data.tables import AnyDataset
from hasten.errors import DataError, os_errors_as

FILE = "left_out.parquet"
#: the part of these rows
_LEFT_OUT = -1


def save_left_out(rows: NDArray[np.bool_], folder: Path) -> None:
    """Write which rows [n] are left out, into the folder of the data."""
    with os_errors_as(DataError, "cannot be written", folder), atomic_path(folder / FILE) as path:
        pq.write_table(pa.table({"left_out": rows}), path)


def without_left_out(dataset: AnyDataset, folder: Path) -> AnyDataset:
    """The dataset for the training phases: all of it, unless rows are left out."""
    file = folder / FILE
    if not file.exists():
        return dataset
    try:
        rows = np.array(pq.read_table(file, partitioning=None).column("left_out"))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DataError(f"{file}: damaged: {error}") from error
    return leave_out(dataset, rows)


def leave_out(dataset: AnyDataset, rows: NDArray[np.bool_]) -> AnyDataset:
    """The dataset whose training part lacks these rows [n]."""
    return replace(dataset, part=np.where(rows, _LEFT_OUT, dataset.part).astype(np.int8))
