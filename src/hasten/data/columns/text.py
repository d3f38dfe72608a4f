"""Text files as bytes: opening (plain or gzip), a check of every byte, a first sample.

Bytes that are not UTF-8, NUL and other control characters, and carriage returns inside a line are
refused with their offset. A byte order mark and CRLF are accepted.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hasten.errors import DataError

_BLOCK = 4 << 20
_GZIP = b"\x1f\x8b"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive (or a spreadsheet): unpack it, or export it as CSV",
    b"BZh": "compressed with bzip2: unpack it first",
    b"\xfd7zXZ": "compressed with xz: unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it first",
    b"\x93NUMPY": "a numpy array: write a table with a user and an item column instead",
    b"\x89HDF": "an HDF5 file: write CSV or Parquet instead",
}
_BAD_CONTROLS = bytes([*range(9), 11, 12, *range(14, 32), 127])
_NOT_CONTROLS = bytes(b for b in range(256) if b not in _BAD_CONTROLS)


@dataclass(frozen=True)
class TextScan:
    """Result of one pass over a text file.

    source: name, sha256 and bytes of the file as stored; lines: line ends, plus one for a last line
    without. last_quote: offset of the last ``"`` in the text, -1 for none; hexadecimal: whether
    ``0x`` occurs anywhere. Both need further checks.
    """

    source: dict[str, Any]
    lines: int
    last_quote: int
    hexadecimal: bool


@dataclass(frozen=True)
class Sample:
    """The beginning of a file, to detect its format.

    magic: the first bytes as stored; lines: (number from 1, text) of the first non-blank lines
    of a text file.
    """

    path: Path
    magic: bytes
    lines: tuple[tuple[int, str], ...] = ()

    @property
    def texts(self) -> list[str]:
        return [text for _, text in self.lines]


def check_name(path: Path) -> None:
    """Refuse a file or folder whose name is not UTF-8: it cannot be recorded in a run folder."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{os.fsencode(path)!r}: the name is not UTF-8; rename it") from error


def require_file(path: Path) -> Path:
    """The path if it is a file with a name in UTF-8. Raises DataError otherwise."""
    check_name(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder where a file is expected")
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not path.is_file():
        raise DataError(f"{path} is not a regular file")
    return path


def is_gzip(path: Path) -> bool:
    """Whether the file is gzip by its first bytes. Refuses a .gz file that is not."""
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP
    if path.suffix == ".gz" and not compressed and path.stat().st_size:
        raise DataError(f"{path}: the name ends in .gz, but the file is not gzip")
    return compressed


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if it is gzip. Raises DataError for damaged files."""
    try:
        opened: Any = gzip.open(path) if is_gzip(path) else path.open("rb")  # noqa: SIM115
        with opened as file:
            yield file
    except PermissionError as error:
        raise DataError(f"{path}: no permission to read it") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged or truncated gzip file ({error})") from error


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of every line, blank ones too."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")


def sample(path: Path, limit: int = 1000, size: int = 256 << 10) -> Sample:
    """The first lines of a file (at least one, however long); for Parquet its first bytes only."""
    require_file(path)
    with path.open("rb") as raw:
        magic = raw.read(8)
    if magic.startswith(b"PAR1"):
        return Sample(path, magic)
    for start, format_name in _FOREIGN.items():
        if magic.startswith(start):
            raise DataError(f"{path} is {format_name}")
    with open_bytes(path) as file:
        head = b""
        while not head.strip() and (more := file.read(size) + file.readline()):
            head += more
    decoded = head.decode("utf-8-sig", "replace")
    if "\ufffd" in decoded or "\0" in decoded:
        scan(path)  # raises with the offset
    numbered = [
        (number, text)
        for number, text in enumerate((t.rstrip("\r") for t in decoded.split("\n")), 1)
        if text.strip()
    ]
    if not numbered:
        raise DataError(f"{path}: 0 rows, the file is empty")
    return Sample(path, magic, tuple(numbered[:limit]))


def file_digest(path: Path) -> dict[str, Any]:
    """Name, sha256 and size of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "sha256": digest, "bytes": path.stat().st_size}


def scan(path: Path) -> TextScan:
    """Check every byte of a text file in one pass, and hash it.

    Raises:
        DataError: not UTF-8, a control character or a lone carriage return, with offset and line.
    """
    digest = hashlib.sha256()
    offset = newlines = 0
    last_quote = -1
    hexadecimal = False
    ended = True
    with open_bytes(path) as file:
        while lines := file.read(_BLOCK) + file.readline():
            if not _is_clean(lines):
                raise DataError(f"{path}: {_first_problem(lines, offset, newlines + 1)}")
            digest.update(lines)
            if (quote := lines.rfind(b'"')) >= 0:
                last_quote = offset + quote
            hexadecimal = hexadecimal or b"0x" in lines or b"0X" in lines
            newlines += lines.count(b"\n")
            offset += len(lines)
            ended = lines.endswith(b"\n")
    source = {"name": path.name, "sha256": digest.hexdigest(), "bytes": offset}
    source = file_digest(path) if is_gzip(path) else source
    return TextScan(source, newlines + (not ended), last_quote, hexadecimal)


def _is_clean(lines: bytes) -> bool:
    """Whether whole lines are UTF-8 without control characters and lone carriage returns."""
    returns = lines.count(b"\r")
    if (returns and returns != lines.count(b"\r\n")) or lines.translate(None, _NOT_CONTROLS):
        return False
    try:
        return lines.isascii() or bool(lines.decode())
    except UnicodeDecodeError:
        return False


def _first_problem(lines: bytes, offset: int, number: int) -> str:
    """The first byte of whole lines that text must not hold. offset, number: of the first line."""
    for line in lines.split(b"\n"):
        body = line.removesuffix(b"\r")
        try:
            body.decode()
        except UnicodeDecodeError as error:
            hint = " (UTF-16?)" if offset == 0 and body[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
            return (
                f"not UTF-8{hint}: byte 0x{body[error.start]:02x} "
                f"at offset {offset + error.start}, line {number}; "
                "convert it, e.g. iconv -f latin1 -t utf-8"
            )
        if bad := body.translate(None, _NOT_CONTROLS):
            problem = "a NUL byte" if bad[0] == 0 else f"the control character 0x{bad[0]:02x}"
            return f"{problem} at offset {offset + body.index(bad[0])}, line {number}"
        if (index := body.find(b"\r")) >= 0:
            return (
                f"a carriage return inside line {number} (offset {offset + index}); "
                "lines end in LF or CRLF"
            )
        offset += len(line) + 1
        number += 1
    return "a carriage return ends the file without a line feed"


def checked_lines(path: Path, encoding: str = "utf-8") -> list[tuple[int, str]]:
    """(number from 1, text) of the non-blank lines of a small text file.

    Raises:
        DataError: bytes that text must not hold, or no such line.
    """
    require_file(path)
    if encoding == "utf-8":
        scan(path)
        numbered = lines_of(path)
    else:
        numbered = enumerate(path.read_bytes().decode(encoding).splitlines(), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    if not lines:
        raise DataError(f"{path}: 0 rows, the file is empty")
    return lines
