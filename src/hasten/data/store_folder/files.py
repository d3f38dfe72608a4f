"""The folder of a store, written whole or not at all; columns and labels mapped from its files."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.atomic_write import (
    atomic_path,
    folder_or_backup,
    fsync_path,
    publish_folder,
    staging_folder,
)
from hasten.data.columns.text import file_digest
from hasten.data.store_folder import manifest
from hasten.data.store_folder.manifest import Manifest
from hasten.data.tables import Vocabulary
from hasten.errors import DataError, UsageError, os_errors_as


@contextmanager
def new_store(out: Path, overwrite: bool, form: type[Manifest]) -> Iterator[Path]:
    """The folder to write a store of this form to; it replaces ``out`` at the end.

    Raises:
        UsageError: ``out`` exists, and is not a store of this form to be overwritten.
        DataError: the folder cannot be written.
    """
    out = out.absolute()
    is_store = out.is_dir() and manifest.holds_store(out, form)
    if out.exists() and not (overwrite and is_store):
        remedy = "replace it with --overwrite" if is_store else "give the name of a new folder"
        raise UsageError(f"{out} exists already: {remedy}")
    with os_errors_as(DataError, "cannot be written", out), _staging(out) as folder:
        yield folder
        publish_folder(out)


def write_manifest(folder: Path, written: Manifest) -> None:
    """Write the manifest, and flush all files of the store."""
    (folder / manifest.MANIFEST).write_text(written.text(), "utf-8")
    for name in (*written.files, manifest.MANIFEST):
        fsync_path(folder / name)


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """The folder to write to, which nobody else writes to. It is removed unless it is published."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if folder_or_backup(out) != out:  # an interrupted replacement
        folder_or_backup(out).rename(out)
    folder = staging_folder(out)
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{out} is being prepared by another process") from None
        try:
            for entry in folder.iterdir():  # of a call that was killed
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            yield folder
        finally:
            if folder.exists():
                shutil.rmtree(folder)
    finally:
        os.close(lock)


def map_column(path: Path, kind: Any) -> NDArray[Any]:
    """The values of a file, mapped read-only. Raises DataError if it is empty."""
    if not path.stat().st_size:
        raise DataError(f"{path}: empty: the store is damaged")
    # a plain array: slices of np.memmap are slower by its bookkeeping
    return np.asarray(np.memmap(path, kind, "r"))


def map_vocabulary(path: Path) -> Vocabulary:
    """Labels in a mapped file, without a copy."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        columns = {name: table.column(name).chunk(0) for name in table.column_names}
        return Vocabulary(columns["label"], columns.get("name"))
    except (OSError, pa.ArrowException, LookupError) as error:
        raise DataError(f"{path}: damaged ({error}): prepare the store again") from error


def save_column(path: Path, values: NDArray[Any]) -> dict[str, Any]:
    """Write a column. Returns its bytes and sha256."""
    values.tofile(path)
    return describe(path)


def save_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write labels and names as an Arrow file that can be mapped."""
    columns = {"label": vocabulary.labels}
    if vocabulary.names is not None:
        columns["name"] = vocabulary.names
    table = pa.table(columns).combine_chunks()
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def describe(path: Path) -> dict[str, Any]:
    """Bytes and sha256 of a file."""
    return {key: value for key, value in file_digest(path).items() if key != "name"}


def origin_of(path: Path, origin: dict[str, Any]) -> dict[str, Any]:
    """Where a file lies and when it was modified, beside what is in it."""
    return {**origin, "path": str(path.absolute()), "modified": path.stat().st_mtime_ns}


def file_names(stored: Manifest) -> list[str]:
    """The names of the files of a store."""
    return [*stored.files, manifest.MANIFEST]


def link(source: Path, stored: Manifest, folder: Path) -> None:
    """Link the files of a store. They are never written again, so a link is as good as a copy."""
    for name in file_names(stored):
        try:
            os.link(source / name, folder / name)
        except OSError:  # another file system, or one without links
            with atomic_path(folder / name) as path:
                shutil.copyfile(source / name, path)
