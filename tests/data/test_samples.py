"""The built-in sample is always the same, predictable by its structure, and can be made large."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.config import InteractionOptions
from hasten.data.columns import counter_random as counter
from hasten.data.interactions.load import load_dataset
from hasten.data.samples.files import write_sample
from hasten.data.samples.sequences import make_sequences, make_sittings
from hasten.data.store import fingerprint
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError, UsageError


@pytest.fixture(scope="module")
def sample():
    return load_dataset(InteractionOptions(path="sequences"), seed=0)


def test_the_sample_is_always_the_same(sample):
    """The bytes may not change: documented results stand on them."""
    assert fingerprint(sample) == (
        "50db38e4f7e2c59cc5ae489906a830be4ead2e3ac4bd8bcf4c0e2ce8ce41c315"
    )


def test_the_seed_of_the_run_does_not_change_the_sample(sample):
    assert fingerprint(load_dataset(InteractionOptions(path="sequences"), seed=7)) == fingerprint(
        sample
    )


def test_sizes_and_names(sample):
    assert (len(sample.users), len(sample.items)) == (1200, 400)
    assert len(sample.interactions) == 24_000
    assert sample.items.names is not None
    assert sample.items.names[0].as_py() == "Folk record 15"
    assert sample.items.names.null_count == 0
    assert (np.bincount(sample.interactions.user) >= 3).all()
    assert sample.interactions.time is not None
    assert (np.diff(sample.interactions.time)[np.diff(sample.interactions.user) == 0] > 0).all()


def ndcg_at_10(scores, targets) -> float:
    mine = scores[np.arange(len(targets)), targets][:, None]
    rank = (scores > mine).sum(1)
    return float(np.where(rank < 10, 1 / np.log2(rank + 2), 0).mean())


def test_the_next_item_can_be_predicted_far_better_than_by_popularity(sample):
    """Counts of which item follows which, from the training part, against popularity."""
    items = len(sample.items)
    train = sample.histories(TRAIN)
    known = sample.histories(TRAIN, VALID)
    target = sample.interactions.item[sample.part == TEST]
    last = known.items[known.offsets[1:] - 1]
    follows = np.ones(len(train.items), bool)
    follows[train.offsets[:-1]] = False
    second = np.flatnonzero(follows)
    counts = np.zeros((items, items))
    np.add.at(counts, (train.items[second - 1], train.items[second]), 1)
    popular = np.bincount(train.items, minlength=items) / 1e6
    by_popularity = ndcg_at_10(np.tile(popular, (len(target), 1)), target)
    by_structure = ndcg_at_10(counts[last] + popular, target)
    assert by_popularity < 0.08
    assert by_structure > 0.5
    top_tenth = np.sort(np.bincount(train.items))[-items // 10 :].sum()
    assert top_tenth > 0.25 * len(train.items)  # popularity is skewed


def test_the_other_sample_is_always_the_same():
    assert fingerprint(load_dataset(InteractionOptions(path="sittings"), seed=0)) == (
        "71ebed3fc1f00619bdec155225874782331e8a64bd1fe11d3209e1a619cb0c8b"
    )


def test_in_sittings_the_pauses_tell_what_comes_next():
    """Three records may follow another, equally far apart in the ring; which, the pause tells."""
    table = make_sittings().table
    user, item, time = (table[name].to_numpy() for name in table.column_names)
    names = make_sittings().names
    place = np.array([int(names[str(i)].split()[-1]) - 1 for i in item])
    genre = np.array([names[str(i)].split()[0] for i in item])
    assert all(len(set(genre[user == one])) == 1 for one in range(1, 50))
    size = np.array([34, 33])[
        np.array([g not in ("Jazz", "Blues", "Folk", "Soul") for g in genre], int)
    ]
    inner = (user[1:-1] == user[:-2]) & (user[1:-1] == user[2:])
    pause = (time[1:-1] - time[:-2])[inner]
    step = ((place[2:] - place[1:-1]) % size[1:-1])[inner]
    third = size[1:-1][inner] // 3
    kinds = [step == 1, step == 1 + third, step == 1 + 2 * third]
    assert all(0.15 < kind.mean() < 0.5 for kind in kinds)
    smallest = np.full(user.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(smallest, user[1:-1][inner], pause)
    units = pause / smallest[user[1:-1][inner]]
    told = np.select([units < 2, units < 20], [kinds[0], kinds[1]], kinds[2])
    assert told.mean() > 0.85


@pytest.mark.parametrize("make", [make_sequences, make_sittings])
@pytest.mark.parametrize(
    ("users", "items", "events"), [(1, 8, 3), (7, 50, 22), (300, 12, 900), (50, 5000, 4000)]
)
def test_any_size_can_be_made(make, users, items, events):
    made = make(users, items, events, seed=3)
    assert made.table.num_rows == events
    assert len(made.names) == items
    user, item = np.asarray(made.table["user_id"]), np.asarray(made.table["item_id"])
    assert set(user) == set(range(1, users + 1))
    assert 1 <= item.min() <= item.max() <= items
    assert (np.bincount(user)[1:] >= 3).all()
    time = np.asarray(made.table["timestamp"])
    assert (np.diff(time)[np.diff(user) == 0] > 0).all()


def test_sizes_that_are_left_out_follow_from_the_others():
    assert make_sequences(events=48_000).table["user_id"].to_numpy().max() == 2400
    assert make_sequences(users=100).table.num_rows == 2000


def test_the_seed_makes_another_set():
    assert not make_sequences(seed=1).table.equals(make_sequences(seed=2).table)


@pytest.mark.parametrize("sizes", [(0, 8, 3), (1, 7, 3), (5, 8, 14)])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(DataError, match="at least"):
        make_sequences(*sizes)


def test_a_written_sample_is_read_with_its_names(tmp_path):
    written = write_sample("sequences", tmp_path / "demo.csv", users=30, items=20, events=200)
    assert written["data"] == str(tmp_path / "demo.csv")
    dataset = load_dataset(InteractionOptions(path=str(tmp_path / "demo.csv")), seed=0)
    assert len(dataset.interactions) == 200
    assert dataset.items.names is not None
    assert dataset.items.names.null_count == 0
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UsageError, match="exists already"):
        write_sample("sequences", tmp_path / "demo.csv")
    with pytest.raises(DataError, match="known: sequences"):
        write_sample("kgat", tmp_path / "x.csv")


def test_the_counter_is_that_of_the_operations():
    torch = pytest.importorskip("torch")
    from hasten.ops import random as operations

    base = counter.key(5, counter.Stream.SAMPLE, 2)
    assert base == operations.key(5, operations.Stream.SAMPLE, 2)
    assert counter.Stream.SPLIT == operations.Stream.SPLIT
    places = torch.arange(1000)
    theirs = operations.bits(base if base < 2**63 else base - 2**64, places).numpy()
    assert np.array_equal(counter.bits(base, 1000).view(np.int64), theirs)
    assert np.array_equal(counter.bits(base, 10, start=90), counter.bits(base, 100)[90:])


def test_the_counter_is_uniform():
    drawn = counter.uniform(counter.key(1), 100_000)
    assert 0 <= drawn.min() < drawn.max() < 1
    assert np.abs(np.histogram(drawn, 20, (0, 1))[0] - 5000).max() < 400
    whole = counter.integers(7, counter.key(2), 70_000)
    assert np.abs(np.bincount(whole, minlength=7) - 10_000).max() < 500
