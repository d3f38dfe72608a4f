"""The manifest of a store: its files, its sources, and whether these have changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hasten.data.columns.text import file_digest
from hasten.errors import DataError

MANIFEST, VERSION = "manifest.json", 1
#: a file that all stores have
OFFSETS = "offsets.i8"


@dataclass(frozen=True)
class Manifest:
    """The content of ``manifest.json``, which a store's folder has once it is complete.

    files: name -> bytes and sha256; sources: name, path, sha256, bytes and modified (ns) of every
    file that was read; options: of the section ``data`` that differ from their defaults.
    """

    name: str
    format: str
    path: str
    fingerprint: str
    counts: dict[str, int]
    notes: list[str]
    files: dict[str, dict[str, Any]]
    sources: list[dict[str, Any]]
    options: dict[str, Any]

    #: what the store holds
    kind: ClassVar[str]

    def text(self) -> str:
        """The content of the file."""
        content = {"kind": self.kind, "version": VERSION, **vars(self)}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    def changed(self) -> list[str]:
        """What has changed since, one sentence a source file; files that are gone have not."""
        changes = []
        for source in self.sources:
            path = Path(source["path"])
            if not path.is_file() or path.stat().st_mtime_ns == source["modified"]:
                continue
            now = path.stat().st_size
            if now != source["bytes"] or file_digest(path)["sha256"] != source["sha256"]:
                changes.append(
                    f"{path} has changed since the store was made: prepare it again "
                    "(hasten data prepare ... --overwrite)"
                )
        return changes


Kind = TypeVar("Kind", bound=Manifest)


def holds_store(folder: Path, form: type[Manifest]) -> bool:
    """Whether a folder is a store of this form."""
    file = folder / MANIFEST
    if not (folder / OFFSETS).is_file() or not file.is_file():
        return False
    return f'"kind": "{form.kind}"' in file.read_text("utf-8", "replace")[:200]


def read_manifest(folder: Path, form: type[Kind]) -> Kind:
    """The manifest of a store of this form; its files have the sizes that it states.

    Raises:
        DataError: the store is damaged, or of another version.
    """
    try:
        content = json.loads((folder / MANIFEST).read_text("utf-8"))
        version = content.pop("version")
        if content.pop("kind") != form.kind or version != VERSION:
            raise DataError(
                f"{folder}: a store in format {version}, but this hasten reads format {VERSION}: "
                "prepare it again (hasten data prepare ... --overwrite)"
            )
        manifest = form(**content)
        for name, file in manifest.files.items():
            size = (folder / name).stat().st_size
            if size != file["bytes"]:
                raise DataError(f"{folder / name}: damaged: {size:,} bytes, not {file['bytes']:,}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{folder}: the store is damaged ({error}): prepare it again") from error
    return manifest


def verify(folder: Path, stored: Manifest) -> None:
    """Read every file of a store and compare its sha256. Raises DataError."""
    for name, file in stored.files.items():
        if file_digest(folder / name)["sha256"] != file["sha256"]:
            raise DataError(f"{folder / name}: damaged: prepare the store again")
