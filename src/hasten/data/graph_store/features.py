"""Node features of a store: one file of float32 (``.f4``) or float16 (``.f2``) for each type."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.data.graph.load import feature_rows
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import Matrix, Modality, digest_of


def write_features(
    files: Mapping[str, str], types: NodeTypes, labels: pa.Array, folder: Path
) -> tuple[list[str], list[dict[str, Any]]]:
    """Write the features of the stored nodes, which are never in memory as a whole.

    files: type -> ``.npy`` or Parquet file; labels: of the nodes. Returns the names of the written
    files, and what :func:`map_features` needs. Raises DataError for features that do not fit.
    """
    names, described = [], []
    for number, opened, rows in feature_rows(files, types, labels):
        name = f"features-{number}.{'f2' if opened.kind == np.float16 else 'f4'}"

        def mapped(shape: tuple[int, int], kind: Any, path: Path = folder / name) -> NDArray[Any]:
            return np.memmap(path, kind, "w+", shape=shape)

        values = opened.taken(rows, mapped)
        names.append(name)
        shape, digest = list(values.shape), digest_of(values)
        described.append({"type": number, "file": name, "shape": shape, "digest": digest})
        values.flush()  # type: ignore[attr-defined]
    return names, described


def map_features(folder: Path, described: list[dict[str, Any]]) -> tuple[tuple[int, Modality], ...]:
    """The features by the number of the type, mapped when they are first used."""
    return tuple(
        (
            each["type"],
            Modality(
                f"type-{each['type']}", (each["shape"][0], each["shape"][1]), each["digest"],
                partial(_read, folder / each["file"], tuple(each["shape"])),
                folder / each["file"],
            ),
        )
        for each in described
    )  # fmt: skip


def _read(path: Path, shape: tuple[int, int]) -> Matrix:
    # a private mapping: torch warns of arrays that cannot be written to
    kind = np.float16 if path.suffix == ".f2" else np.float32
    return np.asarray(np.memmap(path, kind, "c", shape=shape))
