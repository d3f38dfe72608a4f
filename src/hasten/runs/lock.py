"""The lock of a run folder: only one process may write to it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
import weakref
from pathlib import Path

from hasten.atomic_write import open_regular
from hasten.errors import RunFolderError, os_errors_as

LOCK_FILE = ".lock"

_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """An exclusive ``flock`` on ``RUN/.lock``, held until :meth:`release` or the process ends.

    The kernel releases it with the process, so a lock is never stale. Raises RunFolderError with
    the process that holds the lock.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        path = folder / LOCK_FILE
        with os_errors_as(RunFolderError, "cannot lock the run", path):
            descriptor = open_regular(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_holder(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RunFolderError(
                f"{folder}: in use by {_holder(path)}; wait until it ends or choose another folder"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise RunFolderError(
                f"{path}: cannot lock the run: {error.strerror or error}; choose a folder (--out) "
                "on a file system that supports locks"
            ) from error
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Release the lock. The file stays: deleting it could let two processes lock it."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _write_holder(descriptor: int) -> None:
    holder = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def lock_holder(folder: Path) -> str | None:
    """The process that has locked a run folder; None if there is none. Writes nothing."""
    path = folder / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _holder(path)
    except OSError:  # the file system has no locks
        return None
    finally:
        os.close(descriptor)
    return None


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # the holder is still writing
        return "another process"


def _close_in_child() -> None:
    """Close inherited locks: a forked child would keep them after its parent ends."""
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_close_in_child)
