"""The folder of a run: everything that is known of it, enough to go on, evaluate and recommend."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hasten.errors import HastenError, RunFolderError
from hasten.runs.atomic_write import recover_all, remove_tree, write_atomically
from hasten.runs.config_text import config_from_text, config_text
from hasten.runs.exact_json import to_plain_json
from hasten.runs.lock import LOCK_FILE, RunLock

if TYPE_CHECKING:
    from hasten.config import RunConfig

CONFIG, DATA = "config.yaml", "data"
#: what a run goes on from, beside its configuration; the rest is written anew
STATE = (
    *(DATA, "data.json", "environment.json", "metrics.jsonl", "metrics.json"),
    *("train.log", "val.log", "checkpoints", "best", "final"),
)
STARTING = ".starting"  # from create() to the first write_config()
NAME_LENGTH = 64

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH - 1}}}")


class RunFolder:
    """A run's folder and, where it is held for writing, its lock.

    ``config.yaml`` makes a folder a run: it is written last, when all that a run needs is there.
    A start that is killed before leaves a folder that :meth:`create` takes over.
    """

    def __init__(self, path: Path, lock: RunLock | None, made: tuple[Path, ...] = ()) -> None:
        self.path = path
        self._lock = lock
        self._made = made  # the folders that create() made, outermost first

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def final(self) -> Path:
        return self.path / "final"

    @property
    def data(self) -> Path:
        return self.path / DATA

    @classmethod
    def create(cls, out: Path | None, model: str, data: str) -> RunFolder:
        """Make and lock the folder of a new run.

        out: the folder itself (new, empty, or left by a run that was killed before it began);
        none: ``runs/<date>-<model>-<data>-<n>`` with the first free n. Raises RunFolderError.
        """
        try:
            if out is None:
                path, made = _first_free(Path("runs"), model, data)
            else:
                path, made = out, _make(out)
                _refuse_occupied(path)
            lock = RunLock(path)
            try:
                _refuse_occupied(path)  # again: another process may have been faster
                if (path / STARTING).exists():
                    _clear(path, STATE)
                (path / STARTING).touch()
                (path / DATA).mkdir()
            except BaseException:
                lock.release()
                raise
        except OSError as error:
            where = error.filename or out
            raise RunFolderError(f"{where}: no run folder can be made: {error.strerror}") from error
        return cls(path, lock, made)

    @classmethod
    def open(cls, path: Path, *, lock: bool) -> RunFolder:
        """The folder of an existing run. Raises RunFolderError if it is none, or is in use.

        lock: hold it for writing; leftovers of writes that were cut short are tidied up then.
        """
        if not cls.holds_run(path):
            raise RunFolderError(f"{path}: {_why_no_run(path)}")
        if not lock:
            return cls(path, None)
        held = RunLock(path)
        try:
            recover_all(path)
        except OSError as error:
            held.release()
            where = error.filename or path
            raise HastenError(f"{where}: cannot be tidied up: {error.strerror}") from error
        return cls(path, held)

    @staticmethod
    def holds_run(path: Path) -> bool:
        """Whether there is a run in this folder."""
        return (path / CONFIG).is_file()

    def write_config(self, config: RunConfig) -> None:
        """Write ``config.yaml``; ``hasten train --config`` on it repeats the run elsewhere."""
        self._write(CONFIG, config_text(config).encode())
        (self.path / STARTING).unlink(missing_ok=True)

    def read_config(self) -> dict[str, Any]:
        """The keys of ``config.yaml``. Raises RunFolderError naming the file."""
        return config_from_text(self._read(CONFIG), self.path / CONFIG)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all; non-finite numbers become null."""
        self._write(name, (to_plain_json(value, indent=1) + "\n").encode())

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file. Raises RunFolderError naming it."""
        try:
            value = json.loads(self._read(name))
        except (ValueError, RecursionError) as error:
            raise RunFolderError(f"{self.path / name}: damaged: {error}") from error
        if not isinstance(value, dict):
            raise RunFolderError(f"{self.path / name}: damaged: not a JSON object")
        return value

    def copy_to(self, out: Path) -> RunFolder:
        """A copy of this run in a new folder, made and held as by :meth:`create`."""
        assert self._lock is not None, "a run that another process may write is not copied"
        copy = RunFolder.create(out, "", "")
        try:
            for entry in (self.path / name for name in STATE):
                for source in (entry, *sorted(entry.rglob("*"))):
                    target = copy.path / source.relative_to(self.path)
                    if source.is_dir():
                        target.mkdir(exist_ok=True)
                    elif source.exists():
                        shutil.copyfile(source, target)
            copy._write(CONFIG, self._read(CONFIG))
            (copy.path / STARTING).unlink()
        except BaseException as error:
            copy.discard()
            if isinstance(error, OSError):
                raise HastenError(f"{out}: no copy can be made: {error.strerror}") from error
            raise
        return copy

    def discard(self) -> None:
        """Remove what :meth:`create` made, for a run that failed before its first step."""
        assert self._lock is not None, "only the folder of a new run is discarded"
        assert not self.holds_run(self.path) or not self.checkpoints.exists(), "it has begun"
        _clear(self.path, [entry.name for entry in self.path.iterdir()])
        self.close()
        for folder in reversed(self._made):
            if any(folder.iterdir()):
                break
            folder.rmdir()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, name: str, content: bytes) -> None:
        assert _NAME.fullmatch(name), f"not a name for a file of a run: {name!r}"
        path = self.path / name
        try:
            write_atomically(path, content)
        except OSError as error:
            raise HastenError(f"{path}: cannot be written: {error.strerror}") from error

    def _read(self, name: str) -> bytes:
        assert _NAME.fullmatch(name), f"not a name for a file of a run: {name!r}"
        path = self.path / name
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise RunFolderError(f"{path}: missing, so the run cannot be used") from error
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error


def run_name(model: str, data: str, number: int) -> str:
    """``<date>-<model>-<data>-<number>`` in letters, digits, dots, dashes; at most 64 of them."""
    start = f"{time.strftime('%Y-%m-%d')}-{_plain(model)[:20]}-"
    end = f"-{number}"
    room = NAME_LENGTH - len(start) - len(end)
    return start + _plain(Path(data).name)[:room] + end


def _plain(text: str) -> str:
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    return words or "unnamed"


def _first_free(root: Path, model: str, data: str) -> tuple[Path, tuple[Path, ...]]:
    made = _make(root)
    number = 1
    while True:
        path = root / run_name(model, data, number)
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path, (*made, path)


def _make(folder: Path) -> tuple[Path, ...]:
    """Make a folder and its parents; those that were not there before, outermost first."""
    absent = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return tuple(reversed(absent))


def _clear(folder: Path, names: Iterable[str]) -> None:
    for entry in (folder / name for name in names):
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink(missing_ok=True)


def _refuse_occupied(path: Path) -> None:
    if RunFolder.holds_run(path):
        raise RunFolderError(
            f"{path}: holds a run already; go on with it (hasten resume, or --resume auto), or "
            "name another folder"
        )
    left_by_killed_start = (path / STARTING).exists()
    if not left_by_killed_start and any(entry.name != LOCK_FILE for entry in path.iterdir()):
        raise RunFolderError(f"{path}: not empty and not a run; name a new or an empty folder")


def _why_no_run(path: Path) -> str:
    if not path.exists():
        return "no such run folder"
    for parent in path.resolve().parents[:2]:
        if RunFolder.holds_run(parent):
            return f"part of a run, not its folder; name {parent}"
    kind = "a folder" if path.is_dir() else "a file"
    return f"{kind}, but not of a run (it has no {CONFIG}); name one that hasten train made"
