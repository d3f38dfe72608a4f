"""The bytes of text files: hashes, counts, offsets that are right across blocks."""

from __future__ import annotations

import gzip
import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data.columns import text
from hasten.errors import DataError

GOOD = "a,b\r\n1,é\r\n2,日本\n"


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 20])
def test_a_good_file_is_counted_and_hashed_whatever_the_blocks(block, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_BLOCK", block)
    path = tmp_path / "a"
    path.write_bytes(GOOD.encode())
    found = text.scan(path)
    assert found.source["sha256"] == hashlib.sha256(GOOD.encode()).hexdigest()
    assert (found.source["bytes"], found.lines) == (len(GOOD.encode()), 3)
    assert (found.last_quote, found.hexadecimal) == (-1, False)


def test_gzip_is_hashed_as_stored_and_counted_as_text(tmp_path):
    path = tmp_path / "a.gz"
    packed = gzip.compress(GOOD.encode()) + gzip.compress(b"3,x")
    path.write_bytes(packed)
    found = text.scan(path)
    assert found.source["sha256"] == hashlib.sha256(packed).hexdigest()
    assert found.lines == 4
    assert [line for _, line in text.lines_of(path)] == ["a,b", "1,é", "2,日本", "3,x"]


@pytest.mark.parametrize("block", [1, 2, 5, 1 << 20])
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"\xff", "byte 0xff at offset {}"),
        (b"\xc3(", "byte 0xc3 at offset {}"),
        (b"\xed\xa0\x80", "byte 0xed at offset {}"),
        (b"\0", "NUL byte at offset {}"),
        (b"\x07", "control character 0x07 at offset {}"),
        (b"\rx", "offset {}"),
    ],
)
def test_bad_bytes_are_named_with_offset_and_line(bad, says, block, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "_BLOCK", block)
    path = tmp_path / "a"
    start = GOOD.encode() * 2 + b"xy"
    path.write_bytes(start + bad + b"z\nmore\n")
    with pytest.raises(DataError, match=says.format(len(start))) as caught:
        text.scan(path)
    assert "line 7" in str(caught.value)


def test_quotes_and_hexadecimals_are_noticed(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b'ab"c"d\n0x1\n')
    found = text.scan(path)
    assert found.last_quote == 4
    assert found.hexadecimal


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.integers(1, 9))
def test_what_is_accepted_is_decodable_and_clean(tmp_path_factory, content, block):
    path = tmp_path_factory.mktemp("scan") / "a"
    path.write_bytes(content)
    before = text._BLOCK
    text._BLOCK = block
    try:
        found = text.scan(path)
    except DataError:
        found = None
    finally:
        text._BLOCK = before
    try:
        decoded = content.decode()
    except UnicodeDecodeError:
        decoded = "\0"
    plain = decoded.replace("\r\n", "\n")
    clean = not any(c in plain for c in map(chr, (*range(9), 11, 12, 13, *range(14, 32), 127)))
    compressed = content[:2] == b"\x1f\x8b"
    assert (found is not None) == (clean and not compressed)


def test_the_sample_ends_at_a_line(tmp_path):
    path = tmp_path / "a"
    path.write_text("\n".join(f"{i} {i}" for i in range(5000)))
    beginning = text.sample(path, size=1000)
    assert len(beginning.lines) < 1000
    assert beginning.texts[-1].split()[0] == beginning.texts[-1].split()[1]
    assert beginning.lines[0] == (1, "0 0")
    path.write_text("\n\n" + "long " * 1000 + "\nnext\n")
    assert text.sample(path, size=100).lines[0][0] == 3


def test_a_folder_or_nothing_is_no_file(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        text.sample(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        text.sample(tmp_path / "x")
