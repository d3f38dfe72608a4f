"""Texts that are read as numbers: only if each is the decimal form of an integer."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hasten.data.readers.separated import as_numbers

DECIMAL = ["0", "7", "-7", "9", "10", "99", "-100", str(10**18), str(-(10**18)), str(2**63 - 1)]


@pytest.mark.parametrize("other", ["007", "-0", "00", "", "1.0", "u1", str(-(2**63)), str(2**63)])
def test_one_text_of_another_form_keeps_the_column_text(other):
    assert as_numbers(pa.chunked_array([DECIMAL])).to_pylist() == list(map(int, DECIMAL))
    column = pa.chunked_array([[*DECIMAL, other]])
    assert as_numbers(column) is column
