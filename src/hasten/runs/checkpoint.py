"""Checkpoints: safetensors files, a JSON state and a manifest with sizes and SHA-256 hashes.

``epoch-0010/`` holds ``<group>.safetensors`` for each group of tensors (weights, state of the
optimizers, state of the phases), ``state.json`` and ``manifest.json``. A checkpoint is valid if
every file in the manifest exists with the recorded size and hash. A checkpoint is written to a
staging folder and then published: renamed to its final name. Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from hasten.atomic_write import (
    delete_folder,
    folder_or_backup,
    fsync_path,
    holds_published,
    publish_folder,
    published_name,
    recover_all,
    recover_folder,
    remove_folder,
    staging_folder,
)
from hasten.errors import DISK_FULL, CheckpointError, os_errors_as
from hasten.runs.exact_json import from_exact_json, to_exact_json
from hasten.runs.manifest import (
    MANIFEST,
    STATE,
    SUFFIX,
    group_file,
    manifest_bytes,
    recorded_hash,
    verify_files,
)
from hasten.runs.own_files import CHECKPOINT_NAME
from hasten.runs.tensor_file import ShardedTensor, StoredRows, TensorFile

_READ_ATTEMPTS = 20

Fingerprint = tuple[tuple[str, int, int, int], ...]

# Checkpoints that this process wrote or verified. Pruning after every save verifies them again
# only if a file changed.
_known_valid: set[Fingerprint] = set()


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint.

    tensors: group -> name -> CPU tensor; state: JSON values. by_rows: (group, name) -> a tensor
    that was not loaded, of which rows can be read from the file.
    """

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]
    by_rows: dict[tuple[str, str], StoredRows] = field(default_factory=dict)


def checkpoint_name(epoch: int, step: int) -> str:
    """The folder name after ``epoch`` complete epochs and ``step`` steps of the next one."""
    return f"epoch-{epoch:04d}" + (f"-step-{step:06d}" if step else "")


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor | ShardedTensor]],
    state: Mapping[str, Any],
    same_tensors: Path | None = None,
) -> None:
    """Write a checkpoint atomically. An existing one of that name stays valid until replaced.

    tensors: group (file stem) -> name -> dense tensor, contiguous or not, on any device. If some
    are sharded, the other processes call :func:`send_rows` with the same ``tensors``.
    state: JSON values. Floats round-trip exactly, including non-finite ones; tuples become lists.
    same_tensors: a checkpoint with equal tensors, whose files are hard-linked where possible.
    Raises CheckpointError, with the required and the free bytes if the disk is full.
    """
    refuse_link(folder)
    content = to_exact_json(state)
    planned = {group_file(group): TensorFile(named) for group, named in tensors.items()}
    needed = len(content) + sum(file.bytes for file in planned.values()) + 4096
    new = staging_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_folder(new, move_foreign_files_to=folder)
        if shutil.disk_usage(folder.parent).free < needed:
            raise OSError(errno.ENOSPC, "checked before writing")
        new.mkdir()
        files = {
            name: (
                file.bytes,
                _link_and_hash(same_tensors, new / name, file.bytes) or file.write(new / name),
            )
            for name, file in planned.items()
        }
        (new / STATE).write_bytes(content)
        files[STATE] = (len(content), hashlib.sha256(content).hexdigest())
        (new / MANIFEST).write_bytes(manifest_bytes(files))
        for name in (*files, MANIFEST, "."):
            fsync_path(new / name)
        publish_folder(folder)
        _known_valid.add(_fingerprint(folder))
    except BaseException as error:
        with suppress(OSError):  # a failing recovery must not hide the original error
            recover_folder(folder)
        if isinstance(error, OSError):
            raise _write_error(folder, needed, error) from error
        raise


def send_rows(tensors: Mapping[str, Mapping[str, Tensor | ShardedTensor]]) -> None:
    """Send this process's rows of sharded tensors to the one that writes the checkpoint."""
    for named in tensors.values():
        TensorFile(named).send()


def _link_and_hash(source: Path | None, path: Path, size: int) -> str | None:
    """Hard-link the file from another checkpoint; its recorded SHA-256, or None if impossible."""
    if source is None:
        return None
    try:
        sha = recorded_hash(source, path.name)
        file = folder_or_backup(source) / path.name
        if file.is_symlink() or file.stat().st_size != size:
            return None
        os.link(file, path)
    except (CheckpointError, OSError):  # such as a file system without hard links
        return None
    return sha


def read_checkpoint(
    folder: Path,
    groups: Collection[str] | None = None,
    by_rows: Collection[tuple[str, str]] = (),
) -> Checkpoint:
    """Read a checkpoint after checking the sizes of all its files and the hashes of those it reads.

    groups: the groups of tensors to read; None: all. by_rows: (group, name) of tensors that are not
    loaded, and whose rows the caller reads by :attr:`Checkpoint.by_rows`; names that the checkpoint
    lacks are ignored. If another process replaces the checkpoint meanwhile, it is read again.
    Raises CheckpointError with the file and the problem.
    """
    for _ in range(_READ_ATTEMPTS):
        before = _locate(folder)
        path, _ = before
        try:
            names = verify_files(path, groups)
            state = from_exact_json((path / STATE).read_bytes())
            stored = {n.removesuffix(SUFFIX): path / n for n in names if n != STATE}
            tensors = {group: _read(file, group, by_rows) for group, file in stored.items()}
            unloaded = {
                (group, name): tensor
                for group in {group for group, _ in by_rows} & stored.keys()
                for name, tensor in StoredRows.in_file(stored[group]).items()
                if (group, name) in by_rows
            }
        # load_file opens the files through torch, which raises RuntimeError
        except (CheckpointError, SafetensorError, OSError, ValueError, RuntimeError) as error:
            if _locate(folder) != before:
                continue
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path}: damaged: {error}") from error
        if _locate(folder) == before:
            return Checkpoint(folder, tensors, state, unloaded)
    raise CheckpointError(f"{folder}: another process keeps replacing it; try again")


def _read(file: Path, group: str, unloaded: Collection[tuple[str, str]]) -> dict[str, Tensor]:
    """The tensors of a group, except for those that are left in the file."""
    if not unloaded:
        return load_file(file)
    with safe_open(file, framework="pt") as tensors:
        names = [name for name in list(tensors.keys()) if (group, name) not in unloaded]
        return {name: tensors.get_tensor(name).clone() for name in names}


def verify_checkpoint(folder: Path) -> None:
    """Raise CheckpointError with the file and the problem unless all sizes and hashes match."""
    verify_files(folder_or_backup(folder), None)


def newest_checkpoint(
    checkpoints: Path, warn: Callable[[str], None], by_rows: Collection[tuple[str, str]] = ()
) -> Checkpoint | None:
    """Read the newest valid ``epoch-...`` checkpoint of a folder; None if there is none.

    by_rows: as of :func:`read_checkpoint`. Calls ``warn`` with a message for each damaged
    checkpoint it skips.
    """
    for folder in numbered_checkpoints(checkpoints):
        try:
            return read_checkpoint(folder, by_rows=by_rows)
        except CheckpointError as error:
            warn(f"checkpoint skipped: {error}")
    return None


def prune_checkpoints(
    checkpoints: Path, keep: int, log: Callable[[str], None] = lambda _: None
) -> None:
    """Keep the newest ``keep`` valid checkpoints; delete older ones and temporary files.

    log: told of folders that stay because of files that are no part of the checkpoint. Call this
    only while holding the run's lock.
    """
    assert keep >= 1
    valid: set[Fingerprint] = set()
    with os_errors_as(CheckpointError, "cannot be removed or read", checkpoints):
        if checkpoints.is_dir():
            recover_all(checkpoints, CHECKPOINT_NAME)
        for folder in numbered_checkpoints(checkpoints):
            if len(valid) == keep:
                delete_folder(folder)
                if folder.exists():
                    log(f"{folder}: stays: it holds files that are not of the checkpoint")
            elif (fingerprint := _fingerprint(folder)) in _known_valid or _is_valid(folder):
                valid.add(fingerprint)
    # replace the content of the set: forget deleted checkpoints, remember those just verified
    _known_valid.clear()
    _known_valid.update(valid)


def refuse_link(folder: Path) -> None:
    """Raise CheckpointError if the folder is a link, which writing a checkpoint would replace."""
    if folder.is_symlink():
        raise CheckpointError(
            f"{folder}: is a symbolic link, but a checkpoint is written as a folder of its own; "
            "remove the link and resume the run"
        )


def numbered_checkpoints(checkpoints: Path) -> list[Path]:
    """Paths of the checkpoints ``epoch-...``, newest first.

    After an interrupted replacement such a path may not exist itself, only its backup: see
    :func:`folder_or_backup`. Other names, and ``epoch-...`` folders without any file of a
    checkpoint, are the user's and are left out.
    """
    by_number: dict[tuple[int, int], Path] = {}
    for entry in checkpoints.iterdir() if checkpoints.is_dir() else ():
        name = published_name(entry)
        match = CHECKPOINT_NAME.fullmatch(name)
        if match and entry.is_dir() and holds_published(entry):
            by_number[int(match[1]), int(match[2] or 0)] = checkpoints / name
    return [by_number[key] for key in sorted(by_number, reverse=True)]


def _is_valid(folder: Path) -> bool:
    try:
        verify_checkpoint(folder)
    except CheckpointError:
        return False
    return True


def _fingerprint(folder: Path) -> Fingerprint:
    status = [(entry.name, entry.stat()) for entry in folder_or_backup(folder).iterdir()]
    return tuple(sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in status))


def _locate(folder: Path) -> tuple[Path, tuple[int, int] | None]:
    """Where the folder is now, and an identity that changes when it is replaced."""
    path = folder_or_backup(folder)
    try:
        status = path.stat()
    except FileNotFoundError:
        return path, None
    return path, (status.st_ino, status.st_mtime_ns)


def _write_error(folder: Path, needed: int, error: OSError) -> CheckpointError:
    if error.errno not in DISK_FULL:
        where = error.filename or folder
        return CheckpointError(
            f"{where}: the checkpoint cannot be written: {error.strerror or error}"
        )
    free = shutil.disk_usage(folder.parent).free
    return CheckpointError(
        f"{folder}: not enough disk space for a checkpoint: {needed} bytes needed, {free} bytes "
        f"free ({error.strerror or error}). Earlier checkpoints are intact; free space and resume "
        "the run"
    )
