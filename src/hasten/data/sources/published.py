"""Data sets that are published as files of a repository, not as one archive.

A file is verified by its SHA-256, or by its Git blob hash.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: prefix of a Git blob hash in place of a SHA-256
GIT = "git:"


@dataclass(frozen=True)
class RemoteFolder:
    """A folder whose files are fetched one by one. url: its address; files: name -> digest.

    bytes: no file is larger.
    """

    name: str
    summary: str
    url: str
    files: dict[str, str]
    bytes: int
    licence: str
    kind: Literal["facts"] = "facts"
    names_encoding: str = "utf-8"

    @property
    def sha256(self) -> str:
        """The SHA-256 of the list of files and digests: the key in the cache."""
        listed = "\n".join(f"{name} {digest}" for name, digest in sorted(self.files.items()))
        return hashlib.sha256(listed.encode()).hexdigest()


def git_name(path: Path) -> str:
    """``git:`` and the Git blob hash of a file."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return GIT + digest.hexdigest()
