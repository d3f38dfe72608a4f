"""The lock of a run folder: one process writes in it, others are told who that is."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
import weakref
from pathlib import Path
from types import TracebackType

from hasten.errors import RunFolderError

LOCK_FILE = ".lock"

_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """An exclusive ``flock`` on ``RUN/.lock``, held until :meth:`release` or the process's death.

    The kernel releases it with the process, so a lock is never stale. Raises RunFolderError,
    naming the holder, if another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        path = folder / LOCK_FILE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(f"{path}: cannot lock the run: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_holder(descriptor)
        except BlockingIOError as error:
            os.close(descriptor)
            raise RunFolderError(
                f"{folder}: in use by {_holder(path)}; wait until it ends, or name another folder"
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise RunFolderError(
                f"{path}: cannot lock the run: {error.strerror}; name a folder (--out) on a file "
                "system with locks"
            ) from error
        self._descriptor = descriptor
        _held.add(self)

    def release(self) -> None:
        """Let others in. The file stays: removing it could let two in at once."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _write_holder(descriptor: int) -> None:
    holder = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_bytes())
        return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):  # it is just about to write its name
        return "another process"


def _let_go_in_child() -> None:
    """A forked child shares the lock and would keep it after this process's death."""
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_let_go_in_child)
