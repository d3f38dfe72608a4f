"""Rows that are divided on disk come back range by range, each in the order they were written."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from hasten.data.store_folder.buckets import Buckets, boundaries


@pytest.mark.parametrize("announced", [0, 3])
def test_the_rows_of_a_range_come_back_in_order(announced, tmp_path):
    random = np.random.default_rng(0)
    cells = random.integers(0, 40, 1000) ** 2 // 40
    values = random.standard_normal(1000)
    counts = np.bincount(cells, minlength=40) + announced  # more than there are
    buckets = Buckets(tmp_path / "rows", {"cell": np.int32, "value": np.float64}, counts, rows=64)
    chunks = [slice(start, start + 130) for start in range(0, 1000, 130)]
    buckets.fill(chunks, lambda chunk: (cells[chunk], [cells[chunk], values[chunk]]))
    ranges = list(buckets.map(lambda number, columns: (number, *columns)))
    assert len(ranges) == len(buckets) > 5
    for number, cell, value in ranges:
        within = (cells >= buckets.first[number]) & (cells < buckets.first[number + 1])
        assert np.array_equal(cell, cells[within])
        assert np.array_equal(value, values[within])
        assert cell.dtype == np.int32
    buckets.remove()
    assert not list(tmp_path.iterdir())


def test_a_cell_with_many_rows_is_a_range_of_its_own():
    counts = np.array([3, 3, 3, 900, 0, 3, 3])
    first = boundaries(counts, 8)
    assert first[0] == 0
    assert first[-1] == len(counts)
    sizes = [int(counts[a:b].sum()) for a, b in pairwise(first)]
    assert sum(sizes) == counts.sum()
    assert max(sizes) <= 903 + 8
    assert sorted(sizes)[-2] <= 16
