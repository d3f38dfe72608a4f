"""Archives: only regular files, only inside, only so much; nothing stays after a refusal."""

from __future__ import annotations

import io
import stat
import tarfile
import tracemalloc
import zipfile

import pytest

from hasten.data.sources import archives
from hasten.data.sources.archives import is_archive, unpack
from hasten.errors import DataError


def make_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def make_tar(path, members, kind="w:gz"):
    with tarfile.open(path, kind) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


GOOD = [("set/a.csv", b"user,item\n1,2\n"), ("set/deep/b.txt", b"hello")]


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_regular_files_are_unpacked(make, tmp_path):
    archive = make(tmp_path / "x.bin", GOOD)
    assert is_archive(archive)
    unpack(archive, tmp_path / "out")
    for name, content in GOOD:
        assert (tmp_path / "out" / name).read_bytes() == content


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../../x", "a\\..\\x", "C:x", "a\nb", "a/./../../y", "x" * 2000]
)
def test_names_that_lead_outside_are_refused(make, name, tmp_path):
    archive = make(tmp_path / "x.bin", [("ok.txt", b"1"), (name, b"2")])
    with pytest.raises(DataError, match="leads outside or is no name"):
        unpack(archive, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
)
def test_links_and_special_files_of_tar_are_refused(kind, tmp_path):
    info = tarfile.TarInfo("link")
    info.type, info.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.addfile(info)
    with pytest.raises(DataError, match="link or special file"):
        unpack(tmp_path / "x.tar", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_of_zip_are_refused(tmp_path):
    info = zipfile.ZipInfo("link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    make_zip(tmp_path / "x.zip", [(info, b"/etc/passwd")])
    with pytest.raises(DataError, match="link or special file"):
        unpack(tmp_path / "x.zip", tmp_path / "out")


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize(
    ("members", "caps", "says"),
    [
        ([(f"{i}", b"") for i in range(6)], {"MEMBERS": 5}, "more than 5 members"),
        ([("a", b"x" * 60), ("b", b"y" * 60)], {"BYTES": 100}, "more than 100 bytes"),
        ([("bomb", b"\0" * 10_000_000)], {}, "100 times the archive's size"),
    ],
)
def test_caps(make, members, caps, says, tmp_path, monkeypatch):
    for name, value in caps.items():
        monkeypatch.setattr(archives, name, value)
    archive = make(tmp_path / "x.bin", members)
    with pytest.raises(DataError, match=says):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("first", [True, False])
def test_long_headers_of_tar_are_refused(kind, first, tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, kind, format=tarfile.PAX_FORMAT) as archive:
        if not first:
            archive.addfile(tarfile.TarInfo("a"))
        info = tarfile.TarInfo("b")
        info.pax_headers = {"comment": "x" * (50 << 20)}
        archive.addfile(info)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"x\.tar: a header of 524\d+ bytes in a tar archive"):
        _ = is_archive(path) and unpack(path, tmp_path / "out")
    assert tracemalloc.get_traced_memory()[1] < 30 << 20
    tracemalloc.stop()
    assert not (tmp_path / "out").exists()


def test_a_chain_of_headers_is_refused(tmp_path):
    info = tarfile.TarInfo("pax")
    info.type = tarfile.XHDTYPE
    (tmp_path / "x.tar").write_bytes(info.tobuf(tarfile.USTAR_FORMAT) * 20_000)
    with pytest.raises(DataError, match="damaged"):
        unpack(tmp_path / "x.tar", tmp_path / "out")


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_refused(make, tmp_path):
    archive = make(tmp_path / "x.bin", [("a", b"1"), ("a", b"2")])
    with pytest.raises(DataError, match="'a' is taken already"):
        unpack(archive, tmp_path / "out")


def test_a_file_in_the_place_of_a_folder_is_refused(tmp_path):
    archive = make_tar(tmp_path / "x.tar", [("a", b"1"), ("a/b", b"2")], "w")
    with pytest.raises(DataError, match="taken already"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_damaged_archives_are_refused(make, tmp_path):
    archive = make(tmp_path / "x.bin", [("a", bytes(range(256)) * 40)])
    content = bytearray(archive.read_bytes())
    content[60:90] = b"\x55" * 30
    archive.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_plain_gz_is_no_archive(tmp_path):
    (tmp_path / "a.csv.gz").write_bytes(b"\x1f\x8b\x08" + b"\0" * 20)
    assert not is_archive(tmp_path / "a.csv.gz")
