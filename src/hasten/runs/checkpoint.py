"""Checkpoints: a folder of safetensors + JSON + a manifest with the size and sha256 of each file.

``epoch-0010/`` holds one ``<group>.safetensors`` a group of tensors (weights, optimiser, phases),
``state.json`` and ``manifest.json``. It is valid if every file that the manifest lists is there
with that size and hash. It appears by a rename, whole or not at all; nothing is ever pickled.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hasten.errors import CheckpointError
from hasten.runs.atomic_write import (
    drop_folder,
    existing_folder,
    new_name,
    publish_folder,
    published_name,
    recover_all,
    recover_folder,
    remove_tree,
    sync_path,
)
from hasten.runs.exact_json import from_exact_json, to_exact_json
from hasten.runs.manifest import (
    MANIFEST,
    STATE,
    SUFFIX,
    group_file,
    manifest_bytes,
    verify_files,
)
from hasten.runs.tensor_file import TensorFile

_EPOCH = re.compile(r"epoch-(\d{4,})(?:-step-(\d{6,}))?")
_READ_ATTEMPTS = 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Fingerprint = tuple[tuple[str, int, int, int], ...]

# Checkpoints whose hashes this process computed: pruning after every save need not read them
# again as long as no file was touched.
_known_valid: set[Fingerprint] = set()


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds. tensors: group -> name -> tensor on the CPU; state: JSON."""

    path: Path
    tensors: dict[str, dict[str, Tensor]]
    state: dict[str, Any]


def checkpoint_name(epoch: int, step: int) -> str:
    """The folder's name after ``epoch`` whole epochs and ``step`` steps of the next."""
    return f"epoch-{epoch:04d}" + (f"-step-{step:06d}" if step else "")


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    """Write a checkpoint, whole or not at all; one of the same name is valid until replaced.

    tensors: group (file stem) -> name -> dense tensor of any layout, on any device.
    state: JSON values; floats come back bit for bit, also non-finite ones; tuples as lists.
    Raises CheckpointError, with the free and the needed bytes where the disk is full.
    """
    content = to_exact_json(state)
    planned = {group_file(group): TensorFile(named) for group, named in tensors.items()}
    needed = len(content) + sum(file.bytes for file in planned.values()) + 4096
    new = new_name(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_tree(new)
        if shutil.disk_usage(folder.parent).free < needed:
            raise OSError(errno.ENOSPC, "seen before writing")
        new.mkdir()
        files = {name: (file.bytes, file.write(new / name)) for name, file in planned.items()}
        (new / STATE).write_bytes(content)
        files[STATE] = (len(content), hashlib.sha256(content).hexdigest())
        (new / MANIFEST).write_bytes(manifest_bytes(files))
        for name in (*files, MANIFEST, "."):
            sync_path(new / name)
        publish_folder(folder)
        _known_valid.add(_fingerprint(folder))
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            recover_folder(folder)
        if isinstance(error, OSError):
            raise _write_error(folder, needed, error) from error
        raise


def read_checkpoint(folder: Path, groups: Collection[str] | None = None) -> Checkpoint:
    """Read a checkpoint after verifying it: all sizes, and the hash of every file that is read.

    groups: which groups of tensors to read; none: all. A checkpoint that another process replaces
    in the meantime is read again. Raises CheckpointError naming the file and the fault.
    """
    for _ in range(_READ_ATTEMPTS):
        before = place, _ = _locate(folder)
        try:
            names = verify_files(place, groups)
            state = from_exact_json((place / STATE).read_bytes())
            tensors = {
                name.removesuffix(SUFFIX): load_file(place / name)
                for name in names
                if name != STATE
            }
        # torch, too, opens the files, and tells of a failure by RuntimeError
        except (CheckpointError, SafetensorError, OSError, ValueError, RuntimeError) as error:
            if _locate(folder) != before:
                continue
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{place}: damaged: {error}") from error
        if _locate(folder) == before:
            return Checkpoint(folder, tensors, state)
    raise CheckpointError(f"{folder}: is being replaced all the time; try again")


def verify_checkpoint(folder: Path) -> None:
    """Raise CheckpointError, naming the file and the fault, unless every size and hash is right."""
    verify_files(existing_folder(folder), None)


def newest_checkpoint(checkpoints: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest valid ``epoch-...`` checkpoint of a folder; damaged ones are told to ``warn``."""
    for folder in _candidates(checkpoints):
        try:
            return read_checkpoint(folder)
        except CheckpointError as error:
            warn(f"checkpoint skipped: {error}")
    return None


def prune_checkpoints(checkpoints: Path, keep: int) -> None:
    """Keep the newest ``keep`` valid checkpoints, remove what is older and stale leftovers.

    Only the process that writes the checkpoints may call this.
    """
    assert keep >= 1
    kept: set[Fingerprint] = set()
    try:
        if checkpoints.is_dir():
            recover_all(checkpoints)
        for folder in _candidates(checkpoints):
            if len(kept) == keep:
                drop_folder(folder)
            elif (found := _fingerprint(folder)) in _known_valid or _is_valid(folder):
                kept.add(found)
    except OSError as error:
        where = error.filename or checkpoints
        raise CheckpointError(f"{where}: cannot be removed or read: {error.strerror}") from error
    _known_valid.intersection_update(kept)
    _known_valid.update(kept)


def _candidates(checkpoints: Path) -> list[Path]:
    """The ``epoch-...`` folders, newest first, also such as a crash left aside."""
    found: dict[tuple[int, int], Path] = {}
    for entry in checkpoints.iterdir() if checkpoints.is_dir() else ():
        name = published_name(entry)
        match = _EPOCH.fullmatch(name)
        if match and entry.is_dir():
            found[int(match[1]), int(match[2] or 0)] = checkpoints / name
    return [found[key] for key in sorted(found, reverse=True)]


def _is_valid(folder: Path) -> bool:
    try:
        verify_checkpoint(folder)
    except CheckpointError:
        return False
    return True


def _fingerprint(folder: Path) -> Fingerprint:
    status = [(entry.name, entry.stat()) for entry in existing_folder(folder).iterdir()]
    return tuple(sorted((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in status))


def _locate(folder: Path) -> tuple[Path, tuple[int, int] | None]:
    """Where the folder is now, and which one that is: another has another number or time."""
    place = existing_folder(folder)
    try:
        status = place.stat()
    except FileNotFoundError:
        return place, None
    return place, (status.st_ino, status.st_mtime_ns)


def _write_error(folder: Path, needed: int, error: OSError) -> CheckpointError:
    if error.errno not in _NO_ROOM:
        where = error.filename or folder
        return CheckpointError(f"{where}: the checkpoint cannot be written: {error.strerror}")
    free = shutil.disk_usage(folder.parent).free
    return CheckpointError(
        f"{folder}: not enough room for a checkpoint: {needed} bytes needed, {free} bytes free "
        f"({error.strerror}). Earlier checkpoints are untouched; make room, then resume the run"
    )
