"""The folder of a run: everything needed to resume, evaluate and recommend."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.atomic_write import recover_all, write_atomically
from hasten.errors import HastenError, RunFolderError, os_errors_as
from hasten.runs.config_text import config_text
from hasten.runs.exact_json import to_plain_json
from hasten.runs.lock import LOCK_FILE, RunLock
from hasten.runs.own_files import (
    CHECKPOINT_NAME,
    COPIED,
    RECOVERED,
    files_below,
    is_own,
    remove_own,
)

if TYPE_CHECKING:
    from hasten.config import RunConfig

CONFIG, PLAN, UPDATE = "config.yaml", "plan.json", "update.json"
#: exists from create() to the first write_config(); lists the files that are written meanwhile
STARTING = ".starting"
NAME_LENGTH = 64

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH - 1}}}")


class RunFolder:
    """A run folder and, if it is open for writing, its lock.

    A folder is a run once it contains ``config.yaml``, which is written last. If a process is
    killed before, :meth:`create` reuses the folder. made: the folders that ``create`` made,
    outermost first; written: the files that are written until then.
    """

    def __init__(
        self,
        path: Path,
        lock: RunLock | None,
        created: tuple[Path, ...] = (),
        written: Collection[str] = (),
    ) -> None:
        self.path = path
        self.data = path / "data"
        self.checkpoints = path / "checkpoints"
        self.best = path / "best"
        self.final = path / "final"
        self._lock = lock
        self._made, self._written = created, written

    @classmethod
    def create(
        cls, out: Path | None, model: str, data: str, files: Collection[str] = ()
    ) -> RunFolder:
        """Create and lock the folder of a new run.

        out: the folder (new, empty, or left by a start that was killed); None:
        ``runs/<date>-<model>-<data>-<n>`` with the first free n. files: what is written there
        before the configuration, beside ``data.json`` and ``environment.json``. Raises
        RunFolderError.
        """
        written = {CONFIG, "data.json", "environment.json", *files}
        with os_errors_as(RunFolderError, "no run folder can be made", out):
            if out is None:
                path, created = _first_free(Path("runs"), model, data)
            else:
                path, created = out, _make(out)
                _refuse_occupied(path)
            lock = RunLock(path)
            try:
                _refuse_occupied(path)  # again: another process may have been faster
                remove_own(path, _listed(path))
                write_atomically(path / STARTING, os.fsencode("\n".join(sorted(written))))
                folder = cls(path, lock, created, written)
                folder.data.mkdir(exist_ok=True)
            except BaseException:
                lock.release()
                raise
        return folder

    @classmethod
    def open(cls, path: Path, *, lock: bool) -> RunFolder:
        """Open the folder of an existing run. Raises RunFolderError if it is none or in use.

        lock: open it for writing, and remove temporary files of interrupted writes.
        """
        if not cls.holds_run(path):
            raise RunFolderError(f"{path}: {_why_no_run(path)}")
        folder = cls(path, RunLock(path) if lock else None)
        if lock:
            try:
                with os_errors_as(HastenError, "cannot be cleaned up", path):
                    recover_all(path, RECOVERED)
                    if folder.checkpoints.is_dir():
                        recover_all(folder.checkpoints, CHECKPOINT_NAME)
            except HastenError:
                folder.close()
                raise
        return folder

    @staticmethod
    def holds_run(path: Path) -> bool:
        """Whether this folder is a run."""
        return (path / CONFIG).is_file()

    def write_config(self, config: RunConfig) -> None:
        """Write ``config.yaml``, which ``hasten train --config`` accepts to repeat the run."""
        self._write(CONFIG, config_text(config).encode())
        (self.path / STARTING).unlink(missing_ok=True)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file atomically; non-finite numbers become null."""
        self._write(name, (to_plain_json(value, indent=1) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file. Raises RunFolderError with its path."""
        path = self.path / name
        if not path.exists():
            raise RunFolderError(f"{path}: missing, so the run cannot be used")
        try:
            with os_errors_as(RunFolderError, "cannot be read", path):
                value = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise RunFolderError(f"{path}: damaged: {error}") from error
        if not isinstance(value, dict):
            raise RunFolderError(f"{path}: damaged: not a JSON object")
        return value

    def read_plan(self) -> dict[str, Any] | None:
        """What was predicted before the run; None if it was not planned."""
        return self.read_json(PLAN) if (self.path / PLAN).exists() else None

    def copy_to(self, out: Path) -> RunFolder:
        """Copy this run to a new folder and lock it, as in :meth:`create`."""
        assert self._lock is not None, "another process may write to this run: lock it first"
        names = [name for name in files_below(self.path) if COPIED.fullmatch(name)]
        copy = RunFolder.create(out, "", "", names)
        try:
            with os_errors_as(HastenError, "no copy can be made", out):
                for name in names:
                    (copy.path / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(self.path / name, copy.path / name)
                write_atomically(copy.path / CONFIG, (self.path / CONFIG).read_bytes())
                (copy.path / STARTING).unlink()
        except BaseException:
            copy.discard()
            raise
        return copy

    def discard(self) -> None:
        """Delete what :meth:`create` made, for a run that failed before its first step."""
        assert self._lock is not None, "only the folder of a new run can be discarded"
        assert not self.holds_run(self.path) or not self.checkpoints.exists(), "the run has started"
        remove_own(self.path, {LOCK_FILE, STARTING, *self._written})
        self.close()
        with suppress(OSError):  # not empty: the rest belongs to the user
            for folder in reversed(self._made):
                folder.rmdir()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, name: str, content: bytes) -> None:
        assert _NAME.fullmatch(name), f"invalid name for a file of a run: {name!r}"
        with os_errors_as(HastenError, "cannot be written", self.path):
            write_atomically(self.path / name, content)


def remove_run(path: Path) -> None:
    """Delete the folder if it holds a run. Raises RunFolderError if the run is in use."""
    if RunFolder.holds_run(path):
        with RunFolder.open(path, lock=True), os_errors_as(HastenError, "cannot be deleted", path):
            shutil.rmtree(path)


def run_name(model: str, data: str, number: int) -> str:
    """``<date>-<model>-<data>-<number>`` in letters, digits, dots and dashes; at most 64."""
    start = f"{time.strftime('%Y-%m-%d')}-{_plain(model)[:20]}-"
    end = f"-{number}"
    length = NAME_LENGTH - len(start) - len(end)
    return start + _plain(Path(data).name)[:length] + end


def _plain(text: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    return words or "unnamed"


def _first_free(root: Path, model: str, data: str) -> tuple[Path, tuple[Path, ...]]:
    created = _make(root)
    number = 1
    while True:
        path = root / run_name(model, data, number)
        try:
            path.mkdir()
        except FileExistsError:  # also where another process was faster
            number += 1
        else:
            return path, (*created, path)


def _make(folder: Path) -> tuple[Path, ...]:
    """Create a folder and its parents; returns the new ones, outermost first."""
    absent = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(reversed(absent))


def _refuse_occupied(path: Path) -> None:
    """Refuse a folder that holds anything but what a start that was killed left there."""
    if RunFolder.holds_run(path):
        raise RunFolderError(
            f"{path}: holds a run already; continue it (hasten resume, or --resume auto) or "
            'choose another folder (in Python: resume="auto" or overwrite=True)'
        )
    interrupted_start = (path / STARTING).is_file()
    entries = files_below(path) if interrupted_start else (entry.name for entry in path.iterdir())
    own_names = {LOCK_FILE, STARTING, *_listed(path)}
    foreign = [name for name in entries if not is_own(name, own_names)]
    if foreign:
        raise RunFolderError(
            f"{path}: not empty and not a run (it holds {min(foreign)}); choose a new or an empty "
            "folder"
        )


def _listed(path: Path) -> set[str]:
    """The files that a start that was killed may have written."""
    file = path / STARTING
    return set(os.fsdecode(file.read_bytes()).split("\n")) if file.is_file() else set()


def _why_no_run(path: Path) -> str:
    if not path.exists():
        return "no such run folder"
    for parent in path.resolve().parents[:2]:
        if RunFolder.holds_run(parent):
            return f"part of a run, not its folder; name {parent}"
    kind = "a folder" if path.is_dir() else "a file"
    return f"{kind}, but not of a run (it has no {CONFIG}); name one that hasten train made"
