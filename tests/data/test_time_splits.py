"""Splits at two times, rolling windows, sessions, and the variants of leaving events out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hasten.build import load_data
from hasten.config import InteractionOptions
from hasten.config_loading.build import build_config
from hasten.data.interactions.load import load_dataset
from hasten.data.tables import TEST, TRAIN, VALID, Dataset
from hasten.errors import ConfigurationError, DataError

DAY = 86_400
RANDOM = np.random.default_rng(0)
TABLE = {
    "user_id": RANDOM.integers(0, 20, 600),
    "item_id": RANDOM.integers(0, 50, 600),
    "timestamp": RANDOM.integers(0, 60 * DAY, 600),
}


def load(table: Any = TABLE, seed: int = 0, **options: Any) -> Dataset:
    return load_dataset(InteractionOptions(**options), seed, table)


def periods(dataset: Dataset) -> list[tuple[int, int]]:
    times = dataset.interactions.time
    assert times is not None
    return [(int(times[dataset.part == p].min()), int(times[dataset.part == p].max()))
            for p in (TRAIN, VALID, TEST)]  # fmt: skip


def test_shares_of_time_cut_all_users_at_the_same_times():
    dataset = load(split="time", ratios=(0.7, 0.1, 0.2))
    (_, train), (first, valid), (test, _) = periods(dataset)
    assert train < first <= valid < test
    assert np.bincount(dataset.part).tolist() == [420, 60, 120]
    assert dataset.split.startswith("global time split, valid from 1970-")
    tied = {**TABLE, "timestamp": TABLE["timestamp"] // DAY * DAY}
    periods_of_days = periods(load(tied, split="time", ratios=(0.7, 0.1, 0.2)))
    assert periods_of_days[0][1] < periods_of_days[1][0]
    assert periods_of_days[1][1] < periods_of_days[2][0]


def test_windows_roll_back_from_the_end():
    last = int(TABLE["timestamp"].max())
    for fold in range(3):
        dataset = load(split="time", time_window="7d", fold=fold)
        end = last + 1 - fold * 7 * DAY
        _, (first, valid), (test, latest) = periods(dataset)
        assert end - 14 * DAY <= first <= valid < end - 7 * DAY <= test <= latest < end
        time = TABLE["timestamp"]
        assert len(dataset.interactions) == (time < end).sum()
        assert (dataset.part == TEST).sum() == ((time >= end - 7 * DAY) & (time < end)).sum()
    assert set(dataset.items.labels.to_pylist()) == set(TABLE["item_id"][time < end].tolist())


def test_a_pause_begins_a_session():
    table = {
        "user_id": ["a", "b", "a", "a", "b", "a"],
        "item_id": [1, 1, 2, 3, 2, 4],
        "timestamp": [0, 5, 1_000, 3_000, 10, 99_999],
    }
    dataset = load(table, split="leave-last-one-out", session_gap="30m")
    users = dataset.users.labels.to_pylist()
    histories = dataset.histories(TRAIN, TEST)
    items = dataset.items.labels.to_pylist()
    rows = [
        [items[i] for i in histories.items[histories.offsets[n] : histories.offsets[n + 1]]]
        for n in range(len(users))
    ]
    assert dict(zip(users, rows, strict=True)) == {
        "a#1": [1, 2], "a#2": [3], "a#3": [4], "b#1": [1, 2],
    }  # fmt: skip


def test_one_event_or_random_events_are_left_out():
    last = load(split="leave-last-one-out")
    user = last.interactions.user
    ends = np.flatnonzero(np.append(user[1:] != user[:-1], True))
    assert np.flatnonzero(last.part == TEST).tolist() == ends.tolist()
    assert not (last.part == VALID).any()
    found = load(split="leave-random-two-out")
    for part in (VALID, TEST):
        assert np.bincount(user[found.part == part], minlength=20).tolist() == [1] * 20
    assert (found.part != load(split="leave-random-two-out", seed=1).part).any()
    assert (found.part == load(split="leave-random-two-out").part).all()
    assert found.split == "leave-random-two-out (seed 0)"


def test_what_cannot_be_split_is_refused(tmp_path):
    without = {name: TABLE[name] for name in ("user_id", "item_id")}
    for options, message in (
        ({"split": "time"}, "data.split=time needs times"),
        ({"split": "time", "time_window": "7d"}, "data.time_window needs times"),
        ({"session_gap": 60}, "data.session_gap needs times"),
    ):
        with pytest.raises(DataError, match=message):
            load(without, **options)
    with pytest.raises(DataError, match="leaves no train event: valid would begin at"):
        load(split="time", time_window="90d")
    with pytest.raises(DataError, match="no event is that many windows"):
        load(split="time", time_window="7d", fold=99)
    for flags, message in (
        ({"data.fold": 1}, r"data\.fold .* needs data\.time_window"),
        ({"data.time_window": "7d"}, r"data\.time_window .* needs data\.split=time"),
        ({"data.session_gap": "soon"}, "expected seconds, or a number with s, m, h or d"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            build_config("sasrec", flags=flags)
    (tmp_path / "triples.tsv").write_text("a\tr\tb\nb\tr\tc\nc\tr\ta\n" * 5)
    triples = build_config("distmult", str(tmp_path / "triples.tsv"), flags={"data.split": "time"})
    with pytest.raises(DataError, match=r"data\.split=time is for interactions"):
        load_data(triples, None)
