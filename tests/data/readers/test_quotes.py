"""The check of double quotes by arrays of bytes against a regular expression."""

import re

import numpy as np
import pytest

from hasten.data.readers.separated import _pairs_up, quotes_pair_up


def by_expression(lines, separator):
    mark = re.escape(separator.encode())
    cell = rb'(?:(?<=[\n%b])|\A)"(?:[^"\n]|"")*"(?=[\r\n%b]|\Z)' % (mark, mark)
    return b'"' not in re.sub(cell, b"", lines)


@pytest.mark.parametrize("separator", [",", "\t", "|"])
def test_random_lines(separator):
    random = np.random.default_rng(0)
    letters = np.array(
        [b'"', b'"', b'""', separator.encode(), b"\n", b"\r\n", b"a", b"\xc3\xa9"], object
    )
    found = []
    for length in random.integers(0, 14, 20_000):
        lines = b"".join(random.choice(letters, length))
        found.append(_pairs_up(lines, separator))
        assert found[-1] == by_expression(lines, separator), lines
    assert 0.05 < np.mean(found) < 0.95


def test_a_byte_order_mark_and_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.data.readers.separated._QUOTES_READ", 8)
    path = tmp_path / "quoted.csv"
    text = '\ufeff"user","item"\n' + '"a","b""c"\n' * 20
    path.write_text(text, "utf-8")
    assert quotes_pair_up(path, ",", len(text.encode()))
    path.write_text(text + '"a,b"c\n', "utf-8")
    assert not quotes_pair_up(path, ",", len(text.encode()) + 8)
    assert quotes_pair_up(path, ",", len(text.encode()) - 8)
