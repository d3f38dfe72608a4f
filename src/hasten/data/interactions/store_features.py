"""Features in a run folder: copies of small ones, the paths of large ones.

A run resumes from its copy, or from the original file, whose content must be unchanged. Scoring
reads neither: a checkpoint holds the vectors computed from the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hasten.atomic_write import atomic_path
from hasten.data.interactions.load_features import aligned
from hasten.data.readers.features import open_features
from hasten.data.tables import Matrix, Modality
from hasten.errors import DataError

#: bytes of all features together up to which a run folder holds a copy of them
COPIED = 64 << 20


def save_features(modalities: Sequence[Modality], folder: Path) -> list[dict[str, Any]]:
    """Write copies of small or generated features; returns how to read each again."""
    described, files = [], copied_features(modalities)
    for modality in modalities:
        copied = _file(modality.name) in files
        if copied:
            with atomic_path(folder / _file(modality.name)) as path, path.open("wb") as file:
                np.save(file, modality.values, allow_pickle=False)
        described.append(
            {
                "name": modality.name,
                "shape": list(modality.shape),
                "digest": modality.digest,
                "copied": copied,
                "origin": None if modality.origin is None else str(modality.origin),
            }
        )
    return described


def copied_features(modalities: Sequence[Modality]) -> list[str]:
    """The files of the copies: of all features if they are small, else of generated ones."""
    total = sum(modality.values.nbytes for modality in modalities)
    return [_file(m.name) for m in modalities if total <= COPIED or m.origin is None]


def _file(name: str) -> str:
    return f"{name}_feat.npy"


def load_features(
    described: Sequence[dict[str, Any]], folder: Path, labels: pa.Array
) -> tuple[Modality, ...]:
    """What :func:`save_features` described; values are read on first use."""
    found = []
    for entry in described:
        name, origin = str(entry["name"]), entry["origin"]
        if entry["copied"]:
            if not (folder / _file(name)).is_file():
                raise DataError(f"{folder} holds no stored dataset: {_file(name)} missing")
            read = partial(_read_copy, folder / _file(name))
        else:
            read = partial(_read_origin, name, Path(origin), labels)
        rows, width = entry["shape"]
        path = None if origin is None else Path(origin)
        found.append(Modality(name, (int(rows), int(width)), entry["digest"], read, path))
    return tuple(found)


def _read_copy(path: Path) -> Matrix:
    try:
        values: Matrix = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: the stored features are damaged ({error})") from error
    return values


def _read_origin(name: str, path: Path, labels: pa.Array) -> Matrix:
    if not path.is_file():
        raise DataError(
            f"{path}: the {name} features are gone. They are too large for a copy in the run "
            "folder: put the file back to train on (recommending needs none)"
        )
    return aligned(name, open_features(path), labels).values
