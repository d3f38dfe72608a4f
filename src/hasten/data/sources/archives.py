"""Unpack downloaded archives safely: regular files only, into a new folder, within limits."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from hasten.data.columns.text import check_name
from hasten.errors import DataError

_BLOCK = 1 << 20
_DAMAGE = (
    *(zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error),
    *(gzip.BadGzipFile, lzma.LZMAError, RecursionError),
)
_BAD_NAME = re.compile(r"[\x00-\x1f\x7f\\:]")


#: limits of an archive: members, unpacked bytes, ratio of unpacked to packed bytes
MEMBERS, BYTES, RATIO = 10_000, 20 << 30, 100


class _Headers:
    """The bytes of a tar archive. A header, which is read in one piece, is of one block at most."""

    def __init__(self, file: IO[bytes]) -> None:
        self.tell, self.seek, self.close, self._read = file.tell, file.seek, file.close, file.read

    def read(self, size: int) -> bytes:
        if size > _BLOCK:
            raise DataError(f"a header of {size} bytes in a tar archive, more than {_BLOCK}")
        return self._read(size)


class _Tar(tarfile.TarFile):
    def __init__(self, name: Any, mode: Any, fileobj: Any, **options: Any) -> None:
        limited: Any = _Headers(fileobj)
        super().__init__(name, mode, limited, **options)


@contextmanager
def _open_tar(path: Path) -> Iterator[tarfile.TarFile]:
    with path.open("rb") as file:
        try:
            with _Tar.open(fileobj=file) as opened:
                yield opened
        except DataError as error:
            raise error if path.name in str(error) else DataError(f"{path}: {error}") from error


def is_archive(path: Path) -> bool:
    """Whether the file is a .zip, .tar or compressed .tar (a plain .gz is none).

    For a damaged archive, the file name decides.

    Raises:
        DataError: a header of a tar archive that is too long.
    """
    try:
        if zipfile.is_zipfile(path):
            return True
        with _open_tar(path):
            return True
    except tarfile.TarError:
        return False
    except _DAMAGE:
        return ".tar" in path.name.lower() or path.name.lower().endswith((".tgz", ".zip"))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into ``folder``, which must not exist; on failure it is removed.

    Raises:
        DataError: a link or special file, a name that leads outside, a cap exceeded, damage.
    """
    check_name(archive)
    folder.mkdir()
    try:
        members = _zip(archive) if zipfile.is_zipfile(archive) else _tar(archive)
        _write(archive, members, folder.resolve())
    except (*_DAMAGE, RuntimeError) as error:
        shutil.rmtree(folder)
        raise DataError(f"{archive.name}: damaged or encrypted archive ({error})") from error
    except BaseException:
        shutil.rmtree(folder)
        raise


def _zip(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Name and content (None: a folder) of every member."""
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            mode = stat.S_IFMT(info.external_attr >> 16)
            if mode not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise DataError(f"{archive.name}: {info.filename!r} is a link or special file")
            if info.is_dir():
                yield info.filename, None
                continue
            with opened.open(info) as content:
                yield info.filename, content


def _tar(archive: Path) -> Iterator[tuple[str, IO[bytes] | None]]:
    with _open_tar(archive) as opened:
        for info in opened:
            if info.isdir():
                yield info.name, None
                continue
            content = opened.extractfile(info) if info.isreg() else None
            if content is None:
                raise DataError(f"{archive.name}: {info.name!r} is a link or special file")
            with content:
                yield info.name, content


def _write(archive: Path, members: Iterator[tuple[str, IO[bytes] | None]], root: Path) -> None:
    allowed = min(BYTES, RATIO * archive.stat().st_size)
    written = 0
    for count, (name, content) in enumerate(members, 1):
        if count > MEMBERS:
            raise DataError(f"{archive.name}: more than {MEMBERS} members")
        target = _inside(archive, root, name)
        try:
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            out = target.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            raise DataError(f"{archive.name}: the place of {name!r} is taken already") from error
        with out:
            while block := content.read(_BLOCK):
                written += len(block)
                if written > allowed:
                    raise DataError(
                        f"{archive.name}: unpacks to more than {allowed} bytes (at most "
                        f"{BYTES}, and {RATIO} times the archive's size)"
                    )
                out.write(block)
            out.flush()
            os.fsync(out.fileno())


def _inside(archive: Path, root: Path, name: str) -> Path:
    """The target path of a member, which must be under the root."""
    path = PurePosixPath(name)
    target = (root / path).resolve()
    outside = path.is_absolute() or ".." in path.parts or not target.is_relative_to(root)
    if outside or _BAD_NAME.search(name) or len(name) > 1024:
        raise DataError(f"{archive.name}: the member {name[:200]!r} leads outside or is no name")
    return target
