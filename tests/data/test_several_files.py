"""Tables of several files: patterns, partitioned folders, numbered files; their keys as columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.cli.main import main
from hasten.config import AnyDataOptions, InteractionOptions, TripleOptions
from hasten.data.detect import holds_triples, readings
from hasten.data.graph.load import load_graph
from hasten.data.interactions.load import load_dataset
from hasten.data.overview import inspect
from hasten.data.store import fingerprint
from hasten.errors import DataError

EVENTS = {
    "user": [1, 1, 1, 2, 2, 2, 3, 3, 3],
    "item": ["a", "b", "c", "b", "c", "a", "c", "a", "b"],
    "time": [10, 20, 30, 10, 20, 30, 10, 20, 30],
}


def save(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def rows(start, stop, columns=EVENTS):
    return {name: values[start:stop] for name, values in columns.items()}


def load(path, **options):
    return load_dataset(InteractionOptions(path=str(path), **options), seed=0)


@pytest.fixture
def numbered(tmp_path):
    """Three files of EVENTS, one without rows, and files that are no data."""
    for i in range(3):
        save(tmp_path / "events" / f"part-{i}.parquet", rows(4 * i, 4 * i + 4))
    save(tmp_path / "events" / "part-9.parquet", pa.table(EVENTS).slice(0, 0))
    (tmp_path / "events" / "_SUCCESS").write_text("")
    return tmp_path / "events"


@pytest.fixture
def whole():
    return load_dataset(InteractionOptions(), seed=0, table=EVENTS)


def test_a_pattern_and_a_folder_of_numbered_files_are_one_table(numbered, whole):
    for path in (numbered / "*.parquet", numbered / "part-?.parquet", numbered):
        dataset = load(path)
        assert fingerprint(dataset) == fingerprint(whole)
        assert dataset.name == "events"
        assert (
            "3 files read as one table: part-0.parquet ... part-2.parquet" in dataset.source.notes
        )
        assert [file["name"] for file in dataset.source.files] == [
            f"part-{i}.parquet" for i in range(3)
        ]


def test_a_pattern_of_text_files_in_subfolders(tmp_path, whole):
    for year in (2025, 2026):
        (tmp_path / "logs" / str(year)).mkdir(parents=True)
    lines = [",".join(map(str, row)) for row in zip(*EVENTS.values(), strict=True)]
    for year, part in ((2025, lines[:5]), (2026, lines[5:])):
        text = "\n".join(["user,item,time", *part])
        (tmp_path / "logs" / str(year) / "events.csv").write_text(text)
    pattern = tmp_path / "logs" / "**" / "*.csv"
    assert fingerprint(load(pattern)) == fingerprint(whole)
    bad = tmp_path / "logs" / "2026" / "events.csv"
    bad.write_text("user,item,time\n1,a,10\n2,b,soon\n")
    with pytest.raises(
        DataError, match=r"2026/events\.csv: 1 line cannot be used:\n  line 3: time 'soon'"
    ):
        load(pattern)


def test_a_pattern_without_files_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"\*\.parquet: no file matches this pattern"):
        load(tmp_path / "*.parquet")


def test_a_pattern_of_parts_is_a_given_split(tmp_path):
    for name, part in (("train-00000-of-00002", (0, 3)), ("train-00001-of-00002", (3, 6)),
                       ("test-00000-of-00001", (6, 9))):  # fmt: skip
        save(tmp_path / f"{name}.parquet", rows(*part))
    for path in (tmp_path / "*.parquet", tmp_path):
        dataset = load(path)
        assert dataset.split.startswith("given")
        assert np.bincount(dataset.part).tolist() == [6, 0, 3]


def test_files_with_other_names_are_not_joined_silently(tmp_path):
    save(tmp_path / "north.parquet", rows(0, 5))
    save(tmp_path / "south.parquet", rows(5, 9))
    with pytest.raises(DataError, match="more than one file may hold the events"):
        load(tmp_path)
    assert len(load(tmp_path / "*.parquet").interactions) == 9


@pytest.mark.parametrize("pattern", ["", "*/*.parquet", "**/*.parquet", "day=*/part-*"])
def test_partition_keys_are_columns(pattern, tmp_path):
    days = ["2026-01-01", "2026-01-02", "2026-01-03"]
    for i, day in enumerate(days):
        own = {"user": EVENTS["user"][i::3], "item": EVENTS["item"][i::3]}
        save(tmp_path / "events" / f"day={day}" / "part-0.parquet", own)
    plain = {"user": EVENTS["user"], "item": EVENTS["item"], "time": days * 3}
    found = load(tmp_path / "events" / pattern, columns={"time": "day"})
    assert fingerprint(found) == fingerprint(
        load_dataset(InteractionOptions(), seed=0, table=plain)
    )
    assert found.interactions.time is not None


def test_columns_of_the_file_come_before_keys_and_empty_keys_are_refused(tmp_path):
    base = tmp_path / "client=9" / "events"  # above the folder that is named: no key
    for user in (1, 2, 3):
        own = {name: EVENTS[name][3 * user - 3 : 3 * user] for name in ("item", "time")}
        save(base / f"date=2020-01-0{user}" / f"user={user}" / "x.parquet", own)
    whole = load_dataset(InteractionOptions(), seed=0, table=EVENTS)
    assert fingerprint(load(base)) == fingerprint(whole)
    nobody = {name: EVENTS[name][:2] for name in ("item", "time")}
    save(base / "user=__HIVE_DEFAULT_PARTITION__" / "x.parquet", nobody)
    with pytest.raises(
        DataError, match=r"PARTITION__/x\.parquet: (.|\n)*row 1: the user id is empty"
    ):
        load(base)


def test_partitions_may_be_parts_and_relations(tmp_path):
    for part, (start, stop) in {"train": (0, 6), "test": (6, 9)}.items():
        save(tmp_path / "events" / f"split={part}" / "0.parquet", rows(start, stop))
    dataset = load(tmp_path / "events")
    assert dataset.split.startswith("given")
    assert np.bincount(dataset.part).tolist() == [6, 0, 3]
    for relation in ("likes", "knows"):
        ends = {"head": [*"abcd"], "tail": [*"bcda"]}
        save(tmp_path / "graph" / f"relation={relation}" / "0.parquet", ends)
    options = AnyDataOptions(path=str(tmp_path / "graph"))
    assert holds_triples(options)
    assert readings(options) == ["triples"]
    for path in (tmp_path / "graph", tmp_path / "graph" / "*" / "*.parquet"):
        graph = load_graph(TripleOptions(path=str(path)), seed=0)
        assert graph.relations.labels.to_pylist() == ["knows", "likes"]
        assert len(graph.triples) == 8


def test_numbered_files_of_triples_are_one_graph(tmp_path):
    for i in range(2):
        save(
            tmp_path / f"{i}.parquet",
            {"head": [*"abcd"], "relation": [f"r{i}"] * 4, "tail": [*"bcda"]},
        )
    for path in (tmp_path, tmp_path / "*.parquet"):
        assert len(load_graph(TripleOptions(path=str(path)), seed=0).triples) == 8


def test_the_options_that_inspect_prints_read_the_same(numbered, tmp_path):
    save(tmp_path / "days" / "date=2026-01-01" / "x.parquet", rows(0, 9) | {"time": [0] * 9})
    for path in (
        numbered,
        numbered / "*.parquet",
        tmp_path / "days",
        tmp_path / "days" / "*" / "*",
    ):
        found = inspect(AnyDataOptions(path=str(path)))
        assert found.settings["path"] == str(path)
        again = load_dataset(InteractionOptions(**found.settings), seed=0)
        assert fingerprint(again) == fingerprint(load(path))
    assert len(inspect(AnyDataOptions(path=str(numbered))).files) == 1


def test_the_command_line_takes_a_pattern(numbered, capsys):
    assert main(["data", "inspect", str(numbered / "*.parquet")]) == 0
    assert "part-0.parquet and 2 more files" in capsys.readouterr().err
    files = [str(numbered / f"part-{i}.parquet") for i in range(2)]
    assert main(["train", "sasrec", *files]) == 2
    assert "put the pattern in quotes" in capsys.readouterr().err
