"""Atomic writes: after a crash or power failure, either the old or the new version exists.

A file or folder is written under a hidden name in the same directory, flushed to disk and renamed.
The rename is flushed too. No system call replaces one folder by another, so the old folder is
renamed to a hidden backup first; :func:`current_folder` finds whichever version exists.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW, _BACKUP, _TRASH = "new", "old", "trash"


def _fsync(descriptor: int) -> None:
    """Flush a file to the disk (on macOS, fsync alone leaves data in the drive's cache)."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError:  # not supported by the file system, for example on a network share
            pass
    os.fsync(descriptor)


def fsync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path to write to. It replaces ``path`` when the block ends without an error.

    An ``OSError`` names ``path`` instead of the temporary file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{_NEW}")
    try:
        yield temporary
        fsync_path(temporary)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)
        raise
    fsync_path(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def staging_folder(folder: Path) -> Path:
    """Where to prepare a folder for :func:`publish_folder`."""
    return folder.with_name(f".{folder.name}.{_NEW}")


def _backup(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{_BACKUP}")


def publish_folder(folder: Path) -> None:
    """Replace the folder by its staging folder, whose files have been flushed."""
    backup = _backup(folder)
    if folder.exists():
        remove_tree(backup)
        folder.rename(backup)
    staging_folder(folder).rename(folder)
    fsync_path(folder.parent)
    remove_tree(backup)


def current_folder(folder: Path) -> Path:
    """Where the folder is: under its name, or in the backup if a replacement was interrupted."""
    backup = _backup(folder)
    return backup if backup.is_dir() and not folder.exists() else folder


def published_name(entry: Path) -> str:
    """The name that :func:`current_folder` finds this directory entry by."""
    name = entry.name
    is_backup = name.startswith(".") and name.endswith(f".{_BACKUP}")
    return name[1 : -len(_BACKUP) - 1] if is_backup else name


def recover_folder(folder: Path) -> None:
    """Clean up after an interrupted replacement. Call this only while holding the run's lock."""
    backup = current_folder(folder)
    if backup != folder:
        backup.rename(folder)
        fsync_path(folder.parent)
    remove_tree(_backup(folder))
    remove_tree(staging_folder(folder))


def delete_folder(folder: Path) -> None:
    """Delete a folder. An interruption never leaves a partial folder under its name."""
    trash = folder.with_name(f".{folder.name}.{_TRASH}")
    remove_tree(trash)
    folder.rename(trash)
    remove_tree(trash)


def recover_all(parent: Path) -> None:
    """Clean up all temporary files and folders of interrupted writes in a folder."""
    for entry in list(parent.iterdir()):
        stem, _, kind = entry.name.removeprefix(".").rpartition(".")
        if not entry.name.startswith(".") or not stem:
            continue
        if kind in (_NEW, _BACKUP) and entry.is_dir():
            recover_folder(parent / stem)
        elif kind == _TRASH:
            remove_tree(entry)
        elif kind == _NEW:
            entry.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder and its content if it exists."""
    if path.exists():
        shutil.rmtree(path)
