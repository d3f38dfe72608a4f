"""Files and folders that appear whole or not at all, and stay after a power failure.

A file or folder is written under a hidden name beside its place, flushed to the disk, renamed, and
the rename is flushed too. A folder that is replaced is first moved aside under a hidden name, so
at every moment either the old or the new one can be found (:func:`existing_folder`).
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

_NEW, _ASIDE, _TRASH = "new", "old", "trash"


def sync(descriptor: int) -> None:
    """Flush a file to the disk itself (macOS needs its own call to pass the drive's cache)."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
        except OSError:  # a file system without it, such as a network share
            os.fsync(descriptor)
    else:
        os.fsync(descriptor)


def sync_path(path: Path) -> None:
    """Flush a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file that is either the old or the new one, whatever happens."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{_NEW}")
    try:
        temporary.write_bytes(content)
        sync_path(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def new_name(folder: Path) -> Path:
    """Where a folder is prepared before it is published."""
    return folder.with_name(f".{folder.name}.{_NEW}")


def _aside_name(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.{_ASIDE}")


def publish_folder(folder: Path) -> None:
    """Put the prepared folder (at :func:`new_name`, already flushed) in the place of this one."""
    aside = _aside_name(folder)
    if folder.exists():
        remove_tree(aside)
        folder.rename(aside)
    new_name(folder).rename(folder)
    sync_path(folder.parent)
    remove_tree(aside)


def existing_folder(folder: Path) -> Path:
    """Where the folder is now: in its place, or aside if a replacement was cut short."""
    aside = _aside_name(folder)
    return aside if aside.is_dir() and not folder.exists() else folder


def published_name(entry: Path) -> str:
    """The name under which :func:`existing_folder` finds this entry; its own if it is not aside."""
    name = entry.name
    aside = name.startswith(".") and name.endswith(f".{_ASIDE}")
    return name[1 : -len(_ASIDE) - 1] if aside else name


def recover_folder(folder: Path) -> None:
    """Tidy up after a replacement that was cut short. Only the one who may write calls this."""
    aside = _aside_name(folder)
    if aside.is_dir() and not folder.exists():
        aside.rename(folder)
        sync_path(folder.parent)
    remove_tree(aside)
    remove_tree(new_name(folder))


def drop_folder(folder: Path) -> None:
    """Remove a folder so that a crash midway leaves no half of it under its name."""
    trash = folder.with_name(f".{folder.name}.{_TRASH}")
    remove_tree(trash)
    folder.rename(trash)
    remove_tree(trash)


def recover_all(parent: Path) -> None:
    """Tidy up every hidden leftover of this module in a folder."""
    for entry in list(parent.iterdir()):
        stem, _, kind = entry.name.removeprefix(".").rpartition(".")
        if not entry.name.startswith(".") or not stem:
            continue
        if kind in (_NEW, _ASIDE) and entry.is_dir():
            recover_folder(parent / stem)
        elif kind == _TRASH:
            remove_tree(entry)
        elif kind == _NEW:
            entry.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a folder with all it holds, if it is there."""
    if path.exists():
        shutil.rmtree(path)
