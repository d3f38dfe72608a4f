"""Downloads from a server on this machine: what is kept, what is refused, nothing left behind."""

from __future__ import annotations

import hashlib
import http.server
import io
import re
import shutil
import ssl
import subprocess
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.config import InteractionOptions, KnowledgeOptions
from hasten.data.interactions.load import load_dataset
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.sources import catalog, fetch
from hasten.data.sources.catalog import GIT
from hasten.errors import DataError, HastenError, UsageError
from tests.models.collaborative.kgat_data import write_layout

CONTENT = b"user,item\n" + b"".join(b"1,%d\n" % i for i in range(2000))
SHA = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, and misbehaves at some paths."""

    requests: list[str]

    def do_GET(self) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.end_headers()
            return
        if self.path == "/loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
            self.end_headers()
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        content = self.server.contents.get(self.path, CONTENT)  # type: ignore[attr-defined]
        self.send_response(200)
        if self.path != "/unsaid.csv":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[:5000] if self.path == "/short.csv" else content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.requests, served.contents = [], {}
        thread = threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HASTEN_OFFLINE", raising=False)
    return tmp_path / "cache"


def url(server, path: str, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.server_address[1]}{path}"


def left_over(cache: Path) -> list[str]:
    return [p.name for p in cache.rglob("*")] if cache.exists() else []


def test_a_file_is_fetched_once_and_kept(server, cache):
    said = []
    folder = fetch.fetch(
        url(server, "/a.csv"), sha256=SHA, report=lambda done, total: said.append((done, total))
    )
    assert (folder / "a.csv").read_bytes() == CONTENT
    assert said[-1] == (len(CONTENT), len(CONTENT))
    again = fetch.fetch(url(server, "/a.csv"), sha256=SHA.upper(), offline=True)
    assert again == folder
    assert server.requests == ["/a.csv"]
    assert not any(name.startswith(".incoming") for name in left_over(cache))
    dataset = load_dataset(InteractionOptions(path=str(folder)), seed=0)
    assert len(dataset.interactions) == 2000


def test_the_cache_can_be_named(server, cache, tmp_path):
    folder = fetch.fetch(url(server, "/a.csv"), sha256=SHA, cache=tmp_path / "other")
    assert folder.is_relative_to(tmp_path / "other")
    assert not cache.exists()


def test_a_damaged_cache_is_fetched_anew(server, cache):
    folder = fetch.fetch(url(server, "/a.csv"), sha256=SHA)
    kept = folder.parent / "download" / "a.csv"
    kept.unlink()
    kept.write_bytes(b"x")
    fetch.fetch(url(server, "/a.csv"), sha256=SHA)
    assert kept.read_bytes() == CONTENT
    assert len(server.requests) == 2


@pytest.fixture
def archived(server, cache) -> Path:
    """The content of a fetched archive."""
    packed = zipped()
    server.contents["/set.zip"] = packed
    return fetch.fetch(url(server, "/set.zip"), sha256=hashlib.sha256(packed).hexdigest())


def again(server, **options) -> Path:
    digest = hashlib.sha256(server.contents["/set.zip"]).hexdigest()
    return fetch.fetch(url(server, "/set.zip"), sha256=digest, **options)


@pytest.mark.parametrize("offline", [False, True])
def test_a_changed_file_is_restored_from_the_download(offline, archived, server):
    before = {p.name: p.read_bytes() for p in archived.rglob("*") if p.is_file()}
    first, *_ = (p for p in archived.rglob("*") if p.is_file())
    first.write_bytes(first.read_bytes() + b"edited")
    (archived / "mine.txt").write_text("mine")
    assert again(server, offline=offline) == archived
    after = {p.name: p.read_bytes() for p in archived.rglob("*") if p.is_file()}
    assert after == before | {"mine.txt": b"mine"}
    assert server.requests == ["/set.zip"]


def test_offline_deletes_nothing(archived, server, monkeypatch):
    monkeypatch.setenv("HASTEN_OFFLINE", "1")
    shutil.rmtree(archived.parent / "download")
    before = sorted(archived.rglob("*"))
    assert again(server) == archived  # whole without its download
    (archived.parent / "content.json").write_text("[" * 100_000)
    with pytest.raises(UsageError, match="is not whole, and offline is set"):
        again(server)
    assert sorted(archived.rglob("*")) == before
    monkeypatch.delenv("HASTEN_OFFLINE")
    assert again(server) == archived
    assert (archived.parent / "download" / "set.zip").is_file()
    assert server.requests == ["/set.zip"] * 2


@pytest.mark.parametrize(
    ("path", "changes", "error", "says"),
    [
        ("/a.csv", {"sha256": "0" * 64}, DataError, f"the sha256 is {SHA}, but 0000"),
        ("/a.csv", {"sha256": None}, UsageError, "pass --sha256"),
        ("/a.csv", {"sha256": "abc"}, UsageError, "64 hexadecimal digits"),
        ("/a.csv", {"cap": 1000}, DataError, "more than the cap of 1000"),
        ("/unsaid.csv", {"cap": 1000}, DataError, "more than the cap of 1000"),
        ("/a.csv", {"offline": True}, UsageError, "offline is set"),
        ("/short.csv", {}, HastenError, "download failed|broke off"),
        ("/missing", {}, HastenError, "download failed: .*404|Not Found"),
        ("/loop", {}, HastenError, "download failed"),
        ("/to/ftp://127.0.0.1/x", {}, UsageError, "https address is expected"),
        ("/to/http://example.com/x", {}, UsageError, "only https is allowed"),
        ("/to/file:///etc/passwd", {}, HastenError, "is not allowed"),
    ],
)
def test_refusals_leave_nothing_behind(path, changes, error, says, server, cache):
    with pytest.raises(error, match=says):
        fetch.fetch(url(server, path), **({"sha256": SHA} | changes))
    assert [n for n in left_over(cache) if n != "datasets"] == []


def test_the_environment_can_forbid_the_network(server, cache, monkeypatch):
    monkeypatch.setenv("HASTEN_OFFLINE", "1")
    with pytest.raises(UsageError, match="offline is set"):
        fetch.fetch(url(server, "/a.csv"), sha256=SHA)
    monkeypatch.setenv("HASTEN_OFFLINE", "0")
    assert fetch.fetch(url(server, "/a.csv"), sha256=SHA).is_dir()


def test_redirects_on_this_machine_are_followed(server, cache):
    folder = fetch.fetch(url(server, "/to//b.csv"), sha256=SHA)
    assert server.requests == ["/to//b.csv", "/b.csv"]
    assert folder.is_dir()


@pytest.mark.parametrize(
    "address",
    [
        "http://example.com/a.csv",
        "ftp://example.com/a.csv",
        "file:///etc/passwd",
        "https://user:secret@example.com/a",
        "https:///a",
        "http://127.0.0.1.example.com/a",
        "http://[::1/a",
        "https://example.com:99999/a",
    ],
)
def test_addresses_that_are_refused(address):
    with pytest.raises(UsageError) as caught:
        fetch.fetch(address, sha256=SHA)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("host", ["https://example.com", "http://localhost", "http://[::1]"])
def test_addresses_that_are_allowed(host):
    fetch.check_address(host + "/a.csv")


def test_a_redirect_from_elsewhere_may_not_lead_to_this_machine():
    with pytest.raises(UsageError, match="redirects to this machine"):
        fetch.check_address("https://localhost/x", origin="https://example.com/a")
    fetch.check_address("https://example.org/x", origin="https://example.com/a")


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(
            "set/ratings.dat", "1::5::4::978300760\n1::6::3::978300761\n1::7::3::978300762\n"
        )
        archive.writestr("set/movies.dat", "5::Café (1995)::Drama\n".encode("latin-1"))
    return packed.getvalue()


@pytest.fixture
def registered(server, monkeypatch):
    server.contents["/set.zip"] = zipped()
    entry = replace(
        catalog.CATALOG["ml-1m"],
        name="small",
        url=url(server, "/set.zip"),
        sha256=hashlib.sha256(zipped()).hexdigest(),
        bytes=len(zipped()),
        file="set/ratings.dat",
        names="set/movies.dat",
    )
    monkeypatch.setitem(catalog.CATALOG, "small", entry)
    return entry


def test_a_registered_set_is_fetched_by_name_and_read(registered, server, cache):
    with pytest.raises(DataError, match="hasten data fetch small"):
        load_dataset(InteractionOptions(path="small"), seed=0)
    folder = fetch.fetch("small")
    assert sorted(p.name for p in folder.rglob("*.dat")) == ["movies.dat", "ratings.dat"]
    dataset = load_dataset(InteractionOptions(path="small"), seed=0)
    assert dataset.name == "small"
    assert len(dataset.interactions) == 3
    assert dataset.items.names is not None
    assert dataset.items.names.to_pylist() == ["Café (1995)", None, None]


def test_a_registered_set_may_not_be_larger_than_it_is(registered, server, cache):
    server.contents["/set.zip"] = zipped() + b"more"
    with pytest.raises(DataError, match="more than the cap"):
        fetch.fetch("small")


def test_names_that_are_not_to_be_fetched(cache):
    with pytest.raises(UsageError, match="built-in sample"):
        fetch.fetch("sequences")
    with pytest.raises(DataError, match="did you mean 'ml-1m'"):
        fetch.fetch("ml-1n")


def test_every_registered_set_is_complete():
    for name, entry in catalog.CATALOG.items():
        assert entry.name == name
        assert entry.summary
        if isinstance(entry, catalog.RemoteFolder):
            digests = [digest.removeprefix(GIT) for digest in entry.files.values()]
            assert all(re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", digest) for digest in digests)
            assert {"train.txt", "test.txt", "item_list.txt"} < set(entry.files)
        if isinstance(entry, catalog.Fetched):
            fetch.check_address(entry.url)
            assert entry.url.startswith("https://")
            assert len(entry.sha256) == 64
            assert entry.bytes > 0
            assert entry.licence


def test_a_folder_of_files_is_fetched_and_trained_on(server, cache, tmp_path, monkeypatch):
    contents = {}
    for path in write_layout(tmp_path / "there").iterdir():
        contents[path.name] = path.read_bytes()
        server.contents[f"/set/{path.name}"] = path.read_bytes()
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    # what ``git hash-object`` says of this text
    blob = b"blob %d\0" % len(contents["train.txt"])
    digests["train.txt"] = GIT + hashlib.sha1(blob + contents["train.txt"]).hexdigest()
    entry = catalog.RemoteFolder("made", "made", url(server, "/set"), digests, 10_000, "MIT")
    monkeypatch.setitem(catalog.CATALOG, "made", entry)
    with pytest.raises(DataError, match="hasten data fetch made"):
        load_knowledge(KnowledgeOptions(path="made"), 0)
    folder = fetch.fetch("made")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == contents
    asked = len(server.requests)
    assert fetch.fetch("made") == folder
    assert len(server.requests) == asked == 3
    dataset = load_knowledge(KnowledgeOptions(path="made"), 0)
    assert dataset.name == "made"
    assert len(dataset.facts.triples) == 12
    wrong = replace(entry, files={**digests, "train.txt": GIT + "0" * 40})
    monkeypatch.setitem(catalog.CATALOG, "made", wrong)
    before = left_over(cache)
    with pytest.raises(DataError, match="git calls it"):
        fetch.fetch("made")
    assert left_over(cache) == before


def test_over_https_with_its_own_certificate(cache, tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate, secret = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(secret), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, secret)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.requests, served.contents = [], {}
        served.socket = context.wrap_socket(served.socket, server_side=True)
        thread = threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            address = url(served, "/a.csv", "https")
            with pytest.raises(HastenError, match="certificate"):
                fetch.fetch(address, sha256=SHA)
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            assert (fetch.fetch(address, sha256=SHA) / "a.csv").read_bytes() == CONTENT
        finally:
            served.shutdown()
            thread.join()
