"""Downloads: https only, SHA-256 required, size limit, atomic, cached.

The cache (``HASTEN_CACHE``, or ``~/.cache/hasten``) has a folder per download, named by the data
set and its SHA-256: ``download/`` with the original file, ``content/`` with the unpacked files,
and ``content.json`` with their digests.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import re
import shutil
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

from hasten.atomic_write import fsync_path
from hasten.config import DataOptions
from hasten.data.columns.text import file_digest
from hasten.data.sources import archives
from hasten.data.sources.catalog import CATALOG, GIT, Fetched, RemoteFolder, find, git_name
from hasten.errors import DataError, HastenError, UsageError

Options = TypeVar("Options", bound=DataOptions)
#: called with the bytes so far and the bytes to come (None: unknown)
Report = Callable[[int, int | None], None]
DEFAULT_CAP = 4 << 30
_BLOCK = 1 << 20
_TIMEOUT = 60.0
_FAILURES = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)
_RECORD = "content.json"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")


def cache_folder(cache: Path | None = None) -> Path:
    """Where downloads are kept."""
    if cache is not None:
        return cache
    configured = os.environ.get("HASTEN_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "hasten"


def cached(name: str, sha256: str, cache: Path | None = None) -> Path | None:
    """The content of a download that is in the cache, or None."""
    folder = _folder(name, sha256, cache) / "content"
    return folder if folder.is_dir() else None


def fetched_options(entry: Fetched, options: Options) -> Options:
    """The options that read the fetched set; what the user chose stays.

    Raises:
        DataError: the set was not fetched yet.
    """
    folder = cached(entry.name, entry.sha256)
    if folder is None:
        raise DataError(
            f"{entry.name} is registered but not in the cache: hasten data fetch {entry.name}"
        )
    if isinstance(entry, RemoteFolder):
        layout = options.format or "sequences"
        return options.model_copy(update={"path": str(folder), "format": layout})
    names = options.names or (entry.names and str(folder / entry.names))
    update = {"path": str(folder / entry.file), "names": names}
    if options.format is None:
        update["format"] = entry.format
    return options.model_copy(update=update)


def fetch(
    name_or_url: str,
    *,
    sha256: str | None = None,
    cache: Path | None = None,
    offline: bool | None = None,
    cap: int = DEFAULT_CAP,
    report: Report | None = None,
) -> Path:
    """The folder with the content of a registered set or an address, downloaded if need be.

    Files that are missing or changed are restored: the content from the download, if that is whole.

    sha256: required for an address. cap: bytes at most. offline: only what is in the cache
    (None: where HASTEN_OFFLINE is set to anything but 0).

    Raises:
        UsageError: no sha256, an address that is not https (http only on this machine), offline.
        DataError: another sha256, too many bytes, an archive that is not safe to unpack.
        HastenError: the download failed.
    """
    name, url, digest = _target(name_or_url, sha256)
    entry = CATALOG.get(name_or_url)
    remote_files = {_file_name(url): (url, digest)}
    if isinstance(entry, RemoteFolder) and sha256 is None:
        remote_files = {file: (f"{url}/{file}", kind) for file, kind in entry.files.items()}
    final = _folder(name, digest, cache)
    if offline is None:
        offline = os.environ.get("HASTEN_OFFLINE", "0") not in ("", "0")
    downloads = final / "download"
    downloaded = [
        file
        for file, (_, kind) in remote_files.items()
        if (downloads / file).is_file() and _digest(downloads / file, kind) == kind
    ]
    if _is_whole(final) and (offline or len(downloaded) == len(remote_files)):
        return final / "content"
    if offline and len(downloaded) < len(remote_files):
        where = f"{final} is not whole" if final.is_dir() else f"{name} is not in the cache"
        raise UsageError(f"{where}, and offline is set (--offline or HASTEN_OFFLINE)")
    if isinstance(entry, Fetched) and sha256 is None:
        cap = min(cap, entry.bytes)
    final.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=".incoming-", dir=final.parent))
    try:
        (aside / "download").mkdir()
        for file, (address, kind) in remote_files.items():
            target = aside / "download" / file
            if file in downloaded:
                os.link(downloads / file, target)
            else:
                _download(address, target, kind, cap, report)
            if len(remote_files) == 1 and archives.is_archive(target):
                archives.unpack(target, aside / "content")
            else:
                (aside / "content").mkdir(exist_ok=True)
                os.link(target, aside / "content" / target.name)
        record = {
            name: str(file_digest(path)["sha256"]) for name, path in _files(aside / "content")
        }
        (aside / _RECORD).write_text(json.dumps(record), "utf-8")
        _publish(aside, final)
    except OSError as error:
        raise HastenError(f"{name}: cannot write to {final.parent}: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return final / "content"


def _target(name_or_url: str, sha256: str | None) -> tuple[str, str, str]:
    """Name, address and sha256 of what is to be fetched."""
    if sha256 is not None and not _SHA256.fullmatch(sha256.lower()):
        raise UsageError(f"--sha256 {sha256!r}: 64 hexadecimal digits are expected")
    if "://" in name_or_url:
        check_address(name_or_url)
        if sha256 is None:
            raise UsageError(
                f"{name_or_url}: no sha256 is known for this address; take it from the "
                "publisher and pass --sha256"
            )
        stem = _file_name(name_or_url).split(".")[0]
        return stem or "download", name_or_url, sha256.lower()
    entry = find(name_or_url)
    if not isinstance(entry, Fetched):
        raise UsageError(f"{name_or_url} is a built-in sample: there is nothing to fetch")
    return entry.name, entry.url, (sha256 or entry.sha256).lower()


def _folder(name: str, sha256: str, cache: Path | None) -> Path:
    return cache_folder(cache) / "datasets" / f"{name}-{sha256[:16]}"


def _file_name(url: str) -> str:
    last = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    return _PLAIN.sub("-", last).strip(".-")[:64] or "download"


def check_address(url: str, origin: str | None = None) -> None:
    """Refuse anything but https; http is allowed on this machine (loopback) alone.

    origin: the address that redirects here; from elsewhere it may not lead to this machine.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"{url!r} is no address: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise UsageError("an address with a user name or password in it is refused")
    if not host or parts.scheme not in ("https", "http"):
        raise UsageError(f"{url!r}: an https address is expected")
    if parts.scheme == "http" and not _is_loopback(host):
        raise UsageError(f"{url}: only https is allowed (http on this machine alone)")
    from_elsewhere = not _is_loopback(urllib.parse.urlsplit(origin or url).hostname or "")
    if _is_loopback(host) and from_elsewhere:
        raise UsageError(f"{origin} redirects to this machine ({url}): refused")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects only to addresses that would be allowed themselves."""

    max_redirections = 5

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Any,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_address(newurl, origin=req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _digest(path: Path, like: str) -> str:
    """The SHA-256 of a file, or its Git blob hash where ``like`` is one."""
    return git_name(path) if like.startswith(GIT) else str(file_digest(path)["sha256"])


def _download(url: str, target: Path, expected: str, cap: int, report: Report | None) -> None:
    """Download to the file; an incomplete file or a wrong hash is refused."""
    handlers: list[Any] = [_CheckedRedirects()]
    if _is_loopback(urllib.parse.urlsplit(url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    opener = urllib.request.build_opener(*handlers)
    request = urllib.request.Request(url, headers={"User-Agent": "hasten"})  # noqa: S310
    try:
        with opener.open(request, timeout=_TIMEOUT) as response:
            _stream(url, response, target, cap, report)
    except _FAILURES as error:
        reason = getattr(error, "reason", None) or error
        raise HastenError(f"{url}: the download failed: {reason}") from error
    if (digest := _digest(target, expected)) != expected:
        if expected.startswith(GIT):
            raise DataError(f"{url}: git calls it {digest}, but {expected} was expected; not kept")
        raise DataError(f"{url}: the sha256 is {digest}, but {expected} was expected; not kept")


def _stream(
    url: str, response: http.client.HTTPResponse, target: Path, cap: int, report: Report | None
) -> None:
    content_length = response.headers.get("Content-Length")
    length = (
        int(content_length) if content_length is not None and content_length.isdecimal() else None
    )
    if length is not None and length > cap:
        raise DataError(f"{url}: {length} bytes, more than the cap of {cap}")
    done = 0
    with target.open("xb") as file:
        while block := response.read(_BLOCK):
            done += len(block)
            if done > cap:
                raise DataError(f"{url}: more than the cap of {cap} bytes")
            file.write(block)
            if report is not None:
                report(done, length)
        file.flush()
        os.fsync(file.fileno())
    if length is not None and done < length:
        raise HastenError(f"{url}: the download broke off after {done} of {length} bytes")


def _files(folder: Path) -> list[tuple[str, Path]]:
    """The files below a folder by their relative names, sorted."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(path.relative_to(folder).as_posix(), path) for path in paths]


def _is_whole(final: Path) -> bool:
    """Whether the content is what was unpacked."""
    try:
        record = dict(json.loads((final / _RECORD).read_text("utf-8")))
        content = {name: final / "content" / name for name in record}
        return all(file_digest(path)["sha256"] == record[n] for n, path in content.items())
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def _publish(aside: Path, final: Path) -> None:
    """Rename the finished folder; if there is one already, replace its files one by one."""
    try:
        aside.rename(final)
    except OSError:
        for name, path in _files(aside):
            (final / name).parent.mkdir(parents=True, exist_ok=True)
            path.replace(final / name)
    fsync_path(final.parent)
