"""A store holds what the same files give in memory; bad and interrupted calls leave nothing."""

from __future__ import annotations

import gzip
import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.cli.main import main
from hasten.config import InteractionOptions, SequenceOptions
from hasten.data.event_store.manifest import EventManifest, holds_store
from hasten.data.event_store.opened import open_store
from hasten.data.event_store.prepare import prepare
from hasten.data.interactions.load import load_dataset
from hasten.data.readers import arrow, in_blocks, separated
from hasten.data.store_folder import buckets
from hasten.data.store_folder.manifest import read_manifest, verify
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So few rows at a time that every file has several blocks, groups and ranges."""
    monkeypatch.setattr(separated, "_BLOCK", 400)
    monkeypatch.setattr(arrow, "_BATCH", 40)
    monkeypatch.setattr(in_blocks, "GROUP", 90)
    monkeypatch.setattr(in_blocks, "FEW", 20)
    monkeypatch.setattr(buckets, "BUCKET", 50)


def columns(rows=300):
    random = np.random.default_rng(0)
    user = random.integers(0, 30, rows) * 1_000_000_007
    item = random.integers(0, 40, rows) - 3
    time = random.integers(1_600_000_000, 1_600_000_200, rows)
    return {"user": user, "item": item, "rating": random.integers(1, 6, rows), "time": time}


def csv(table, names=("user", "item", "time")):
    rows = zip(*(table[name] for name in names), strict=True)
    return "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)]) + "\n"


def numbers(folder):
    (folder / "a.csv").write_text(csv(columns()))
    return {"path": str(folder / "a.csv")}


def labels_in_gzip(folder):
    table = columns()
    table["user"] = [f"u{u % 97}é" for u in table["user"]]
    (folder / "a.csv.gz").write_bytes(gzip.compress(csv(table).encode()))
    return {"path": str(folder / "a.csv.gz")}


def parquet_files(folder):
    table = pa.table(columns())
    pq.write_table(table.slice(0, 170), folder / "part-0.parquet")
    pq.write_table(table.slice(170), folder / "part-1.parquet")
    return {"path": str(folder / "*.parquet")}


def late_fractions(folder):
    table = columns()
    table["time"] = [*table["time"][:250], *(f"{t}.25" for t in table["time"][250:])]
    (folder / "a.csv").write_text(csv(table))
    return {"path": str(folder / "a.csv")}


def late_labels(folder):
    table = columns()
    table["item"] = [*map(str, table["item"][:280]), *(f"{i}".zfill(3) for i in range(20))]
    (folder / "a.csv").write_text(csv(table))
    return {"path": str(folder / "a.csv")}


def small_numbers(folder):
    """Ids that are their own numbers until one is too large, or text."""
    table = columns()
    item = np.abs(table["item"]) + np.where(np.arange(300) < 120, 0, 30)
    user = [u if row < 200 else f"u{u}" for row, u in enumerate(table["user"] // 1_000_000_007)]
    table |= {"user": user, "item": item, "rating": np.where(item == 7, 1, table["rating"])}
    (folder / "a.csv").write_text(csv(table, ("user", "item", "rating", "time")))
    return {"path": str(folder / "a.csv"), "min_rating": 2}


def dates(folder):
    table = columns()
    table["time"] = np.datetime_as_string(table["time"].astype("datetime64[s]"))
    (folder / "a.csv").write_text(csv(table))
    return {"path": str(folder / "a.csv")}


def best_rated(folder):
    table = columns()
    table["rating"] = np.where(table["item"] == 7, 1, table["rating"])  # an item to leave out
    (folder / "a.csv").write_text(csv(table, ("user", "item", "rating", "time")))
    return {"path": str(folder / "a.csv"), "min_rating": 3}


def each_once(folder):
    table = columns()
    (folder / "a.csv").write_text(csv({k: np.tile(v[:200], 2) for k, v in table.items()}))
    return {"path": str(folder / "a.csv"), "duplicates": "drop"}


def without_times(folder):
    (folder / "a.tsv").write_text(csv(columns(), ("user", "item")).replace(",", "\t"))
    return {"path": str(folder / "a.tsv"), "ids": "labels"}


def without_header(folder):
    table = columns()
    rows = zip(table["user"], table["item"], table["time"], strict=True)
    (folder / "a.txt").write_text("".join("  ".join(map(str, row)) + "\n" for row in rows))
    return {"path": str(folder / "a.txt")}


@pytest.mark.parametrize(
    "make",
    [
        numbers, labels_in_gzip, parquet_files, late_fractions, late_labels, small_numbers, dates,
        best_rated, each_once, without_times, without_header,
    ],
)  # fmt: skip
def test_a_store_holds_what_memory_does(make, tmp_path):
    options = InteractionOptions(**make(tmp_path))
    expected = load_dataset(options, seed=0)
    steps = []
    prepare(options, tmp_path / "store", report=lambda *step: steps.append(step))
    found = open_store(tmp_path / "store", InteractionOptions(path=str(tmp_path / "store")))
    assert found.users.labels.equals(expected.users.labels)
    assert found.items.labels.equals(expected.items.labels)
    for name in ("user", "item", "time"):
        one, other = (getattr(d.interactions, name) for d in (found, expected))
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == np.int64 and np.array_equal(one, other))
    assert np.array_equal(found.part, expected.part)
    assert found.split == expected.split
    for parts in ((TRAIN,), (TRAIN, VALID), (TEST,), (TRAIN, VALID, TEST), (TRAIN, TEST)):
        one, other = found.histories(*parts).in_memory(), expected.histories(*parts)
        assert np.array_equal(one.offsets, other.offsets)
        assert np.array_equal(one.items, other.items)
    assert set(found.source.notes) <= set(expected.source.notes)
    counts = expected.source.counts
    for name in ("read", "users", "items", "interactions", "duplicates", "train", "test"):
        assert found.source.counts[name] == counts[name]
    assert [steps[0][0], steps[-1][0]] == ["reading", "sorting"]
    assert steps[-1][1] == steps[-1][2]
    verify(tmp_path / "store", read_manifest(tmp_path / "store", EventManifest))


@pytest.mark.parametrize(
    "split",
    [
        {"split": "leave-last-one-out"},
        {"split": "ratio", "ratios": (0.5, 0.3, 0.2)},
        {"split": "ratio", "ratio_rounding": "down"},
        {"split": "time", "time_window": 40},
    ],
)
def test_a_store_is_split_as_memory_is(split, tmp_path, monkeypatch):
    monkeypatch.setattr("hasten.data.event_store.cuts._BLOCK", 100)
    options = InteractionOptions(**numbers(tmp_path), **split)
    expected = load_dataset(options, seed=0)
    prepare(InteractionOptions(**numbers(tmp_path)), tmp_path / "store")
    found = open_store(tmp_path / "store", InteractionOptions(path="store", **split))
    assert np.array_equal(found.part, expected.part)
    assert found.split == expected.split


def late_rows():
    table = columns()
    table["time"] = [*table["time"][:299], "soon"]
    yield csv(table)
    yield csv(columns()) + "1,2\n"
    yield csv(columns()) + ",2,1600000000\n"
    yield csv(columns()) + "1.5,2,1600000000\n"
    yield csv(columns()) + "1,x\x01,1600000000\n"
    yield "user,item,time\n"


@pytest.mark.parametrize("text", list(late_rows()))
def test_bad_rows_are_named_as_from_memory(text, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    options = InteractionOptions(path=str(tmp_path / "a.csv"))
    with pytest.raises(DataError) as expected:
        load_dataset(options, seed=0)
    with pytest.raises(DataError) as found:
        prepare(options, tmp_path / "store")
    assert str(found.value) == str(expected.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_what_a_store_does_not_hold_is_refused(tmp_path, capsys):
    given = numbers(tmp_path)
    with pytest.raises(UsageError, match=r"data\.k_core: not applied by data prepare"):
        prepare(InteractionOptions(**given, k_core=2), tmp_path / "store")
    prepare(InteractionOptions(**given), tmp_path / "store")
    with pytest.raises(UsageError, match="replace it with --overwrite"):
        prepare(InteractionOptions(**given), tmp_path / "store")
    with pytest.raises(UsageError, match=r"data\.min_rating has no effect: .* is a store"):
        open_store(tmp_path / "store", InteractionOptions(min_rating=2))
    with pytest.raises(UsageError, match=r"data\.split=leave-random-two-out: a store is divided"):
        open_store(tmp_path / "store", InteractionOptions(split="leave-random-two-out"))
    with pytest.raises(UsageError, match=r"data\.event_features: .* is a store, which holds users"):
        open_store(tmp_path / "store", SequenceOptions(event_features=("device",)))
    prepare_command = ["data", "prepare", given["path"], "--out", str(tmp_path / "other"), "--set"]
    for option in ("data.event_features=device", "data.item_features=items.csv"):
        assert main([*prepare_command, option]) == 2
        message = capsys.readouterr().err
        assert f"{option.partition('=')[0]} has no effect" in message
        assert "a store holds users, items and times" in message
    assert not (tmp_path / "other").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="give the name of a new folder"):
        prepare(InteractionOptions(**given), tmp_path / "mine", overwrite=True)


def test_a_change_of_the_source_and_of_the_files_is_noticed(tmp_path):
    given = numbers(tmp_path)
    first = prepare(InteractionOptions(**given), tmp_path / "store")
    assert not read_manifest(tmp_path / "store", EventManifest).changed()
    with (tmp_path / "a.csv").open("a") as file:
        file.write("5,6,1600000000\n")
    (changed,) = read_manifest(tmp_path / "store", EventManifest).changed()
    assert "a.csv has changed since the store was made" in changed
    again = prepare(InteractionOptions(**given), tmp_path / "store", overwrite=True)
    assert again.fingerprint != first.fingerprint
    assert again.counts["interactions"] == first.counts["interactions"] + 1
    item = tmp_path / "store" / "item.i4"
    item.write_bytes(bytes(4) + item.read_bytes()[4:])
    with pytest.raises(DataError, match=r"item\.i4: damaged"):
        verify(tmp_path / "store", read_manifest(tmp_path / "store", EventManifest))
    item.write_bytes(b"")
    with pytest.raises(DataError, match=r"item\.i4: damaged: 0 bytes"):
        read_manifest(tmp_path / "store", EventManifest)


@pytest.mark.parametrize("what", ["reading", "sorting"])
def test_a_killed_call_leaves_the_store_as_it_was(what, tmp_path):
    given = numbers(tmp_path)
    before = prepare(InteractionOptions(**given), tmp_path / "store")

    def kill(step, *_):
        if step == what:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("store", "other"):
        child = os.fork()
        if child == 0:
            prepare(InteractionOptions(**given), tmp_path / name, overwrite=True, report=kill)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert read_manifest(tmp_path / "store", EventManifest) == before
    assert not (tmp_path / "other").exists()
    assert not any(map(holds_store, set(tmp_path.iterdir()) - {tmp_path / "store"}))
    prepare(InteractionOptions(**given), tmp_path / "other")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".store.new", "a.csv", "other", "store"]
