"""Personalised times against the formula, one user at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.data.tables import Histories
from hasten.models.sequential.personal_times import personal_times


def _histories(*rows):
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    times = np.array([time for row in rows for time in row], np.int64)
    return Histories(offsets, np.arange(len(times)), times)


def _naive(row, limit, unseen):
    stop = len(row) - unseen
    seen = row[max(0, stop - limit) : max(0, stop)]
    gaps = [b - a for a, b in pairwise(seen) if b > a]
    unit = min(gaps) if gaps else 1
    return [round((time - min(seen)) / unit) + 1 for time in seen]


@given(
    st.lists(st.lists(st.integers(-(10**12), 10**12), max_size=9), max_size=6),
    st.integers(1, 6),
    st.integers(0, 1),
)
def test_what_is_seen_follows_the_formula(rows, limit, unseen):
    rows = [sorted(row) for row in rows]
    found = personal_times(_histories(*rows), limit, unseen)
    for row, start in zip(rows, found.offsets, strict=False):
        stop = start + max(0, len(row) - unseen)
        seen = found.times[max(start, stop - limit) : stop].tolist()
        assert seen == _naive(row, limit, unseen)


def test_by_hand():
    found = personal_times(_histories([0, 60, 60, 600, 6000], [], [5], [9, 9, 9]), 10)
    assert found.times.tolist() == [1, 2, 2, 11, 101, 1, 1, 1, 1]
    assert found.times.dtype == np.int64


def test_only_what_is_seen_sets_the_unit():
    row = [0, 1, 100, 200, 400, 405]
    assert personal_times(_histories(row), 3).times[3:].tolist() == [1, 41, 42]
    assert personal_times(_histories(row), 3, unseen=1).times[2:5].tolist() == [1, 2, 4]


@pytest.mark.parametrize("factor", [60, 1000, 86_400_000])
def test_another_unit_of_the_file_gives_the_same_times(factor):
    row = [3, 8, 8, 30, 31]
    scaled = [time * factor + 7 for time in row]
    assert np.array_equal(
        personal_times(_histories(scaled), 9).times, personal_times(_histories(row), 9).times
    )


def test_without_times_events_are_evenly_spaced():
    history = Histories(np.array([0, 3, 3, 5]), np.arange(5))
    assert personal_times(history, 10).times.tolist() == [1, 2, 3, 1, 2]
