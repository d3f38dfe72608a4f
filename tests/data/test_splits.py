"""The splits, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.config import InteractionOptions
from hasten.data import splits
from hasten.data.interactions.load import load_dataset
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError

lengths_lists = st.lists(st.integers(1, 12), min_size=1, max_size=8).filter(lambda x: max(x) >= 3)


@given(lengths_lists)
def test_leave_last_two_out(lengths):
    user = np.repeat(np.arange(len(lengths)), lengths)
    part, words = splits.leave_last_two_out(user, len(lengths), timed=True)
    expected = []
    for n in lengths:
        expected += [TRAIN] * n if n < 3 else [TRAIN] * (n - 2) + [VALID, TEST]
    assert part.tolist() == expected
    assert words == "leave-last-two-out, by time"


@given(lengths_lists, st.sampled_from(["time", "random"]), st.integers(0, 2**62))
def test_ratio_gives_each_user_its_shares(lengths, order, seed):
    user = np.repeat(np.arange(len(lengths)), lengths)
    shares = (0.5, 0.25, 0.25)
    part, words = splits.ratio(user, len(lengths), shares, order, seed, False)
    assert "0.5/0.25/0.25" in words
    assert words.endswith("in file order" if order == "time" else f"at random (seed {seed})")
    for u, n in enumerate(lengths):
        mine = part[user == u]
        test = int(n * 0.25 + 0.5) if n >= 3 else 0
        assert (mine == TEST).sum() == (mine == VALID).sum() == test
        assert (mine == TRAIN).sum() >= 1
        if order == "time":
            assert (np.diff(mine) >= 0).all()


def sizes_down(n: int, shares: tuple[float, float, float]) -> list[int]:
    """One user at a time: whole numbers below, then one from train, for test before valid."""
    sizes = [0, int(shares[1] * n), int(shares[2] * n)]
    sizes[0] = n - sizes[1] - sizes[2]
    for place in (2, 1):
        if sizes[0] > 1 and 0 < shares[place] * n < 1:
            sizes[place] += 1
            sizes[0] -= 1
    return sizes


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.9, 0.02, 0.08), (0.7, 0.0, 0.3)])
def test_rounding_down_keeps_one_event_for_test(shares):
    lengths = list(range(1, 60))
    user = np.repeat(np.arange(len(lengths)), lengths)
    part, words = splits.ratio(user, len(lengths), shares, "random", 0, False, "down")
    assert "of each user's events, rounded down, at random" in words
    for u, n in enumerate(lengths):
        assert np.bincount(part[user == u], minlength=3).tolist() == sizes_down(n, shares)


def test_a_random_ratio_follows_the_seed():
    user = np.repeat(np.arange(50), 20)
    first, again = (splits.ratio(user, 50, (0.8, 0.1, 0.1), "random", 1, True)[0] for _ in range(2))
    other = splits.ratio(user, 50, (0.8, 0.1, 0.1), "random", 2, True)[0]
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    places = np.flatnonzero(first == TEST) % 20
    assert len(np.unique(places)) > 10


def test_a_share_of_nothing_is_empty_and_an_impossible_one_is_refused():
    user = np.repeat(np.arange(3), 4)
    part, _ = splits.ratio(user, 3, (0.75, 0.0, 0.25), "time", 0, True)
    assert not (part == VALID).any()
    with pytest.raises(DataError, match=r"valid share of 0\.05"):
        splits.ratio(user, 3, (0.7, 0.05, 0.25), "time", 0, True)


def test_switches_without_effect_are_noted():
    table = {"user": [1, 1, 1], "item": [1, 2, 3]}
    options = InteractionOptions(ratios=(0.5, 0.25, 0.25), time_unit="ms")
    notes = load_dataset(options, seed=0, table=table).source.notes
    assert "no effect without data.split=ratio: ratios" in notes
    assert "data.time_unit=ms has no effect: there are no times" in notes


def test_users_with_few_events_are_counted():
    table = {"user": [1, 1, 1, 2, 2, 3], "item": [1, 2, 3, 1, 2, 9]}
    dataset = load_dataset(InteractionOptions(), seed=0, table=table)
    counts = dataset.source.counts
    assert (counts["users_with_1_event"], counts["users_with_2_events"]) == (1, 1)
    assert counts["items_not_in_train"] == 1
    assert (counts["train"], counts["valid"], counts["test"]) == (4, 1, 1)
    assert any("1 user with 1 event, 1 user with 2" in note for note in dataset.source.notes)
