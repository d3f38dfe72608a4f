"""Thresholds, duplicates, k-core and order, against plain formulations."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.arrays import distinct
from hasten.config import InteractionOptions
from hasten.data.columns import times
from hasten.data.columns.times import TimeColumn
from hasten.data.interactions import clean
from hasten.data.interactions.clean import Columns
from hasten.data.interactions.load import load_dataset
from hasten.errors import DataError

events_lists = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-3, 3)), min_size=1, max_size=60
)


def columns(rows, timed=True) -> Columns:
    user, item, time = (np.array(c) for c in zip(*rows, strict=True))
    return Columns(
        user.astype(np.int32),
        item.astype(np.int32),
        None,
        time.astype(np.int64) if timed else None,
        None,
        None,
    )


@given(events_lists, st.booleans())
def test_duplicates_are_the_rows_seen_before(rows, timed):
    keys = rows if timed else [row[:2] for row in rows]
    expected = [key in keys[:i] for i, key in enumerate(keys)]
    assert clean.duplicate_rows(columns(rows, timed)).tolist() == expected
    in_order, _ = clean.ordered(columns(rows, timed))
    assert np.array_equal(clean.duplicates_of_sorted(in_order), clean.duplicate_rows(in_order))


def test_duplicates_whose_hashes_collide_are_compared(monkeypatch):
    monkeypatch.setattr(clean, "mix", np.zeros_like)
    rows = [(1, 1, 1), (1, 2, 1), (1, 1, 1), (1, 1, 2), (2, 1, 1)]
    assert clean.duplicate_rows(columns(rows)).tolist() == [False, False, True, False, False]


@given(events_lists, st.integers(2, 4))
def test_core_is_the_largest_set_where_all_have_enough(rows, k):
    kept = list(range(len(rows)))
    while True:
        users = Counter(rows[i][0] for i in kept)
        items = Counter(rows[i][1] for i in kept)
        smaller = [i for i in kept if users[rows[i][0]] >= k and items[rows[i][1]] >= k]
        if smaller == kept:
            break
        kept = smaller
    if not kept:
        with pytest.raises(DataError, match="leaves no event"):
            clean.core(columns(rows), k, 6, 6)
        return
    found = clean.core(columns(rows), k, 6, 6)
    assert list(zip(found.user, found.item, strict=True)) == [rows[i][:2] for i in kept]


@given(events_lists | events_lists.map(lambda rows: sorted(rows, key=lambda row: row[2])))
def test_order_is_by_user_then_time_then_file(rows):
    found, in_order = clean.ordered(columns(rows))
    expected = sorted(rows, key=lambda row: (row[0], row[2]))
    assert list(zip(found.user, found.item, found.time, strict=True)) == expected
    by_user = {u: [r[2] for r in rows if r[0] == u] for u in range(6)}
    assert in_order == all(list(t) == sorted(t) for t in by_user.values())


def test_columns_are_sorted_in_their_memory_unless_they_cannot_be_written():
    events = columns([(2, 1, 5), (0, 3, 9), (1, 2, 7)])
    events.time.flags.writeable = False
    found, _ = clean.ordered(events)
    assert found.user is events.user
    assert found.user.tolist() == [0, 1, 2]
    assert events.time.tolist() == [5, 9, 7]
    assert found.time.tolist() == [9, 7, 5]


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=200), st.integers(1, 63))
def test_stable_order_is_a_stable_argsort(values, bits):
    keys = np.array([value % 2**bits for value in values], np.int64)
    expected = np.argsort(keys, kind="stable")
    assert np.array_equal(clean.stable_order(keys, 2**bits), expected)
    assert np.array_equal(clean.stable_order(keys, int(keys.max()) + 1), expected)
    assert np.array_equal(clean.stable_order(keys.copy(), 2**bits, reuse=True), expected)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60))
def test_distinct_values_are_those_of_a_set(values):
    for found in (values, sorted(values), sorted(set(values))):
        assert distinct(np.array(found, np.int64)).tolist() == sorted(set(values))


def test_order_of_times_too_far_apart_for_one_key():
    rows = [(1, 0, 9 * 10**18), (0, 1, 5), (1, 2, -9 * 10**18), (1, 3, -9 * 10**18)]
    found, in_order = clean.ordered(columns(rows))
    assert found.item.tolist() == [1, 2, 3, 0]
    assert not in_order


def table(**columns_) -> dict:
    base = {"user": [1, 1, 1, 1], "item": [1, 2, 3, 1], "time": [1, 2, 3, 1]}
    return base | columns_


def test_policies_on_duplicates():
    kept = load_dataset(InteractionOptions(duplicates="keep"), seed=0, table=table())
    assert len(kept.interactions) == 4
    assert kept.source.counts["duplicates"] == 1
    dropped = load_dataset(InteractionOptions(duplicates="drop"), seed=0, table=table())
    assert len(dropped.interactions) == 3
    assert any("1 duplicate event" in n and "left out" in n for n in dropped.source.notes)
    with pytest.raises(DataError, match="1 duplicate event"):
        load_dataset(InteractionOptions(duplicates="error"), seed=0, table=table())


def test_the_threshold_comes_before_everything_else():
    rated = table(rating=[3.7, 3.7, 3.7, 1.0], item=[10, 20, 30, 40])
    dataset = load_dataset(InteractionOptions(min_rating=3.7), seed=0, table=rated)
    assert dataset.items.labels.to_pylist() == [10, 20, 30]
    assert dataset.source.counts["below_min_rating"] == 1


def test_the_vocabulary_holds_only_what_is_left():
    data = {"user": [1, 1, 1, 2, 2, 2, 9], "item": [5, 6, 7, 5, 6, 7, 5]}
    dataset = load_dataset(InteractionOptions(k_core=2), seed=0, table=data)
    assert dataset.users.labels.to_pylist() == [1, 2]
    assert dataset.interactions.user.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.source.counts["outside_core"] == 1


def test_unsorted_and_constant_times_are_noted():
    shuffled = table(time=[3, 1, 2, 9])
    notes = load_dataset(InteractionOptions(), seed=0, table=shuffled).source.notes
    assert any("not in the order of the file" in note for note in notes)
    constant = load_dataset(InteractionOptions(), seed=0, table=table(time=[7, 7, 7, 7]))
    assert any("all times are equal (1970-01-01 00:00:07)" in n for n in constant.source.notes)
    assert constant.interactions.item.tolist() == [0, 1, 2, 0]


def test_suspicious_units_are_noted():
    def notes(values, unit):
        return " ".join(times.unite([TimeColumn(np.array(values))], unit)[2])

    now = 1_700_000_000
    assert notes([now, now + 5], "s") == ""
    assert "look like ms, not s" in notes([now * 1000, now * 1000 + 5], "s")
    assert "look like us, not ms" in notes([now * 10**6, now * 10**6 + 5000], "ms")
    assert "look like s, not ms" in notes([now, now + 5000], "ms")
    assert "units seem to be mixed" in notes([now] * 9 + [now * 1000], "s")
    seconds, key, _ = times.unite([TimeColumn(np.array([1.25, 1.75, 2.0]))], "s")
    assert seconds.tolist() == [1, 1, 2]
    assert key is not None
    assert key.tolist() == [1250, 1750, 2000]
