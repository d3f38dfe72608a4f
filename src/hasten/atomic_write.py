"""Atomic writes: after a crash or power failure, either the old or the new version exists.

A file or folder is written under a hidden name in the same directory, flushed to disk and renamed.
The rename is flushed too. No system call replaces one folder by another, so the old folder is
renamed to a hidden backup first; :func:`folder_or_backup` finds whichever version exists.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW, _BACKUP, _TRASH = "new", "old", "trash"
_TEMPORARY = re.compile(rf"\.(.+?)(?:\.\d+)?\.({_NEW}|{_BACKUP}|{_TRASH})")
_MANIFEST = "manifest.json"
#: the files of a published folder without a readable manifest, and of one that is being written
_PUBLISHED = re.compile(
    rf"{re.escape(_MANIFEST)}|state\.json|(weights|optimisers|phases|training)\.safetensors"
)
_STAGED = re.compile(r".+\.(json|safetensors)")


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


def require_regular(path: Path) -> None:
    """Raise OSError if a link, a device or anything else but a regular file has this name."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "it is a symbolic link, not a regular file", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def open_regular(path: Path, flags: int) -> int:
    """Open a regular file, or create it; never follow a symbolic link. Returns its descriptor."""
    require_regular(path)
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path to write to. It replaces ``path`` when the block ends without an error.

    Raises ``OSError``, which names ``path`` instead of the temporary file, also if ``path`` is
    not a regular file.
    """
    require_regular(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{_NEW}")
    temporary.unlink(missing_ok=True)
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
        remove_folder(backup, move_foreign_files_to=folder)
        folder.rename(backup)
    staging_folder(folder).rename(folder)
    fsync_path(folder.parent)
    remove_folder(backup, move_foreign_files_to=folder)


def folder_or_backup(folder: Path) -> Path:
    """Where the folder is: under its name, or in the backup if a replacement was interrupted."""
    backup = _backup(folder)
    return backup if backup.is_dir() and not folder.exists() else folder


def temporary_of(name: str) -> tuple[str, str] | None:
    """What a temporary file or folder stands for, and its kind; None for other names."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else (match[1], match[2])


def published_name(entry: Path) -> str:
    """The name that :func:`folder_or_backup` finds this directory entry by."""
    temporary = temporary_of(entry.name)
    return temporary[0] if temporary is not None and temporary[1] == _BACKUP else entry.name


def recover_folder(folder: Path) -> None:
    """Clean up after an interrupted replacement. Call this only while holding the run's lock."""
    backup = folder_or_backup(folder)
    if backup != folder:
        backup.rename(folder)
        fsync_path(folder.parent)
    remove_folder(_backup(folder), move_foreign_files_to=folder)
    remove_folder(staging_folder(folder), move_foreign_files_to=folder)


def delete_folder(folder: Path) -> None:
    """Delete a folder. An interruption never leaves a partial folder under its name."""
    trash = folder.with_name(f".{folder.name}.{_TRASH}")
    remove_folder(trash, move_foreign_files_to=folder)
    folder.rename(trash)
    remove_folder(trash, move_foreign_files_to=folder)


def recover_all(parent: Path, own: re.Pattern[str]) -> None:
    """Clean up the temporary files and folders of interrupted writes in a folder.

    own: the names of files and folders that are written there; those of other names stay.
    """
    for entry in list(parent.iterdir()):
        name, kind = temporary_of(entry.name) or ("", "")
        if not own.fullmatch(name):
            continue
        if kind == _TRASH:
            remove_folder(entry, move_foreign_files_to=parent / name)
        elif entry.is_dir():
            recover_folder(parent / name)
        else:
            entry.unlink(missing_ok=True)


def holds_published(folder: Path) -> bool:
    """Whether any file of a published folder is in this folder."""
    return any(_PUBLISHED.fullmatch(entry.name) for entry in folder.iterdir())


def _own_files(folder: Path) -> set[str]:
    """The names that the manifest of a published folder lists, or those that are always its own."""
    try:
        return {_MANIFEST, *json.loads((folder / _MANIFEST).read_bytes())["files"]}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        staged = (temporary_of(folder.name) or ("", ""))[1] == _NEW
        pattern = _STAGED if staged else _PUBLISHED
        return {entry.name for entry in folder.iterdir() if pattern.fullmatch(entry.name)}


def remove_folder(folder: Path, *, move_foreign_files_to: Path) -> None:
    """Remove a published folder if it exists, except files of the user, which are moved."""
    if folder.is_symlink():
        folder.unlink()
    if not folder.exists():
        return
    own_files = _own_files(folder)
    # the manifest last: an interrupted removal goes on from it
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name == _MANIFEST):
        if entry.name in own_files and not entry.is_dir():
            entry.unlink()
        else:
            move_foreign_files_to.mkdir(exist_ok=True)
            entry.rename(move_foreign_files_to / entry.name)
    folder.rmdir()
