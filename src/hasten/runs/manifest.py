"""The manifest of a checkpoint: its files with their sizes and SHA-256 hashes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hasten.atomic_write import folder_or_backup
from hasten.errors import CheckpointError, os_errors_as

FORMAT, FORMAT_VERSION = "hasten checkpoint", 1
MANIFEST, STATE, SUFFIX = "manifest.json", "state.json", ".safetensors"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def group_file(group: str) -> str:
    """The file name of a group of tensors."""
    name = group + SUFFIX
    assert _NAME.fullmatch(name), f"invalid name for a group of tensors: {group!r}"
    return name


def manifest_bytes(files: Mapping[str, tuple[int, str]]) -> bytes:
    """The manifest of these files (name -> bytes, SHA-256), with a hash of its own content."""
    listed = {name: {"bytes": size, "sha256": sha} for name, (size, sha) in files.items()}
    body = {"format": FORMAT, "version": FORMAT_VERSION, "files": listed}
    return json.dumps({**body, "sha256": own_hash(body)}, indent=1).encode()


def verify_files(folder: Path, groups: Collection[str] | None) -> list[str]:
    """Check all sizes, and the hashes of the state and the groups. Returns the hashed files.

    groups: None: all. Raises CheckpointError with the file and the problem.
    """
    with os_errors_as(CheckpointError, "cannot be read", folder):
        files = _read_manifest(folder)
        _refuse_unlisted(folder, files)
        file_names = [STATE, *map(group_file, groups)] if groups is not None else list(files)
        if missing := sorted(set(file_names) - set(files)):
            raise CheckpointError(f"{folder}: holds no {', '.join(missing)}")
        for name, listed in files.items():
            _check_size(folder / name, listed["bytes"])
        for name in file_names:
            _check_hash(folder / name, files[name]["sha256"])
    return file_names


def recorded_hash(folder: Path, name: str, *, verify: bool = False) -> str:
    """The SHA-256 that the manifest lists for a file. Raises CheckpointError.

    verify: check the content of the file too.
    """
    with os_errors_as(CheckpointError, "cannot be read", folder):
        path = folder_or_backup(folder)
        files = _read_manifest(path)
        if name not in files:
            raise CheckpointError(f"{folder}: holds no {name}")
        sha: str = files[name]["sha256"]
        if verify:
            _check_size(path / name, files[name]["bytes"])
            _check_hash(path / name, sha)
        return sha


def hash_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def own_hash(body: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON object, for the object to hold beside its content."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    if not folder.is_dir():
        fault = "a file, but a checkpoint is a folder" if folder.exists() else "no such checkpoint"
        raise CheckpointError(f"{folder}: {fault}")
    path = folder / MANIFEST
    if not path.exists():
        raise CheckpointError(f"{path}: missing, so this is not a whole checkpoint")
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not the manifest of a {FORMAT}")
    if body.get("version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: version {body.get('version')!r} of the format, but this hasten reads version "
            f"{FORMAT_VERSION}; use the hasten that wrote it"
        )
    if body.pop("sha256", None) != own_hash(body):
        raise CheckpointError(f"{path}: damaged: it does not match its own sha256")
    files = body.get("files")
    if not isinstance(files, dict) or not all(map(_well_formed, files.items())):
        raise CheckpointError(f"{path}: does not list the files of a checkpoint")
    if STATE not in files:
        raise CheckpointError(f"{path}: does not list {STATE}")
    return files


def _well_formed(entry: tuple[str, Any]) -> bool:
    name, listed = entry
    return (
        _NAME.fullmatch(name) is not None
        and (name == STATE or name.endswith(SUFFIX))
        and isinstance(listed, dict)
        and isinstance(listed.get("bytes"), int)
        and isinstance(listed.get("sha256"), str)
    )


def _refuse_unlisted(folder: Path, files: Collection[str]) -> None:
    """Refuse tensor and JSON files that the manifest does not list: checkpoints were mixed.

    Other files, such as notes, are never read.
    """
    for path in folder.iterdir():
        known = path.name in files or path.name == MANIFEST or path.name.startswith(".")
        if not known and path.suffix in (SUFFIX, ".json"):
            raise CheckpointError(f"{path}: not in the manifest; move it out of the checkpoint")


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise CheckpointError(f"{path}: missing")
    size = path.stat().st_size
    if size != expected:
        raise CheckpointError(f"{path}: damaged: {size} bytes, but {expected} were written")


def _check_hash(path: Path, expected: str) -> None:
    if hash_of(path) != expected:
        raise CheckpointError(f"{path}: damaged: its content does not match its sha256")
