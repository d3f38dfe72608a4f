"""A cache of graphs on disk, by the hash of everything that they depend on.

Files are in ``graphs`` of the cache folder (``HASTEN_CACHE``, or ``~/.cache/hasten``). A damaged
file is replaced; if the folder is not writable, nothing is cached.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hasten.arrays import Int64
from hasten.data.sources.fetch import cache_folder

Arrays = Mapping[str, Int64]


def content_hash(*parts: str | Int64) -> str:
    """SHA-256 of strings and integer arrays."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"text {len(part)} {part}\n".encode())
        else:
            digest.update(f"array {part.shape}\n".encode())
            digest.update(np.ascontiguousarray(part, "<i8").data)
    return digest.hexdigest()


def cached_arrays(name: str, mark: str, make: Callable[[], Arrays]) -> dict[str, Int64]:
    """The arrays of this name and content hash, from the cache or from ``make``."""
    path = cache_folder() / "graphs" / f"{name}-{mark[:32]}.safetensors"
    arrays = _read(path, mark)
    if arrays is None:
        arrays = dict(make())
        _write(path, mark, arrays)
    return arrays


def _sum(arrays: Arrays) -> str:
    return content_hash(*(part for name in sorted(arrays) for part in (name, arrays[name])))


def _read(path: Path, mark: str) -> dict[str, Int64] | None:
    try:
        with safe_open(path, "np") as file:
            said = file.metadata() or {}
            arrays = {name: file.get_tensor(name).astype(np.int64) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        return None
    return arrays if said == {"mark": mark, "sum": _sum(arrays)} else None


def _write(path: Path, mark: str, arrays: Arrays) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        small = {name: values.astype(np.int32) for name, values in arrays.items()}
        save_file(small, aside, {"mark": mark, "sum": _sum(arrays)})
        aside.replace(path)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
