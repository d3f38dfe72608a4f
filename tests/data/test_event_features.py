"""Features of events: kinds, values, missing cells, every reader, cleaning, storing, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.config import InteractionOptions, SequenceOptions
from hasten.data.event_features import MISSING, as_texts, canonical
from hasten.data.interactions.event_columns import MAX_WHOLE_CATEGORIES
from hasten.data.interactions.load_item_features import load_sequences
from hasten.data.overview import inspect
from hasten.data.store import fingerprint, load_stored, save_dataset
from hasten.data.tables import TRAIN
from hasten.errors import DataError

TABLE = """user,item,time,device,dwell,rating,weekday,logged_in
1,10,1,phone,10,4,0,True
1,11,2,tablet,20.5,5,1,False
1,12,3,,,3,2,True
1,13,4,tv,40,5,3,true
2,10,1,phone,nan,1,4,False
2,12,2,phone,30,2,5,
2,11,3,tablet,1e2,5,6,False
2,13,4,phone,-3,3,0,True
"""
NAMES = ["device", "dwell", "rating", "weekday", "logged_in"]


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / "events.csv").write_text(TABLE)
    return tmp_path / "events.csv"


def load(path, *columns, **options):
    given = SequenceOptions(path=str(path), event_features=columns, **options)
    return load_sequences(given, 0)


def cells(dataset) -> dict[str, list]:
    """The cells of every column: values, None where missing or unknown."""
    features, found = dataset.event_features, {}
    for column, each in zip(features.columns, features.cells, strict=True):
        if column.values is None:
            found[column.name] = [None if np.isnan(x) else x for x in each.tolist()]
        else:
            found[column.name] = [None if c < 0 else column.values[c] for c in each]
    return found


def test_columns_by_their_content(path):
    dataset = load(path, *NAMES)
    assert cells(dataset) == {
        # 2 of 4 events of each user are for training: no television among them
        "device": ["phone", "tablet", None, None, "phone", "phone", "tablet", "phone"],
        "dwell": [10, 20.5, None, 40, None, 30, 100, -3],
        "rating": ["4", "5", None, "5", "1", "2", "5", None],
        "weekday": ["0", "1", None, None, "4", "5", None, "0"],
        "logged_in": ["true", "false", "true", "true", "false", None, "false", "true"],
    }
    device, dwell = dataset.event_features.columns[:2]
    known = np.array([10, 20.5, 30])
    assert device.values == ("phone", "tablet")
    assert (dwell.mean, dwell.deviation) == (known.mean(), known.std())
    others = {"device": "1 event", "rating": "2 events", "weekday": "3 events"}
    words = "with a value that no training event has: read as missing"
    notes = [note for note in dataset.source.notes if note.startswith("event feature")]
    assert notes == [
        "event features: device (categorical, 2 values, 1 missing cell), dwell (numeric, 2 missing "
        "cells), rating (categorical, 4 values, 0 missing cells), weekday (categorical, 4 values, "
        "0 missing cells), logged_in (categorical, 2 values, 1 missing cell)",
        *(f"event feature {name}: {count} {words}" for name, count in others.items()),
    ]


def test_entries_in_the_table_of_weights(path):
    features = load(path, "device", "dwell").event_features
    assert features.labels.to_pylist() == ["device", "device\tphone", "device\ttablet", "dwell"]
    mean, deviation = features.columns[1].mean, features.columns[1].deviation
    numbers = [10, 20.5, mean, 40, mean, 30, 100, -3]
    assert features.entries.value.tolist() == [[v, 3] for v in (1, 2, 0, 0, 1, 1, 2, 1)]
    np.testing.assert_allclose(features.entries.weight[:, 0], 1)
    np.testing.assert_allclose(
        features.entries.weight[:, 1], [(n - mean) / deviation for n in numbers], rtol=1e-6
    )


def test_whole_numbers_are_categories_if_there_are_few(tmp_path):
    for count, kind in (
        (MAX_WHOLE_CATEGORIES, "categorical"),
        (MAX_WHOLE_CATEGORIES + 1, "numeric"),
    ):
        rows = [f"{i % 5},{i % 7},{i},{i % count}" for i in range(200)]
        (tmp_path / "e.csv").write_text("\n".join(["user,item,time,hour", *rows]) + "\n")
        assert load(tmp_path / "e.csv", "hour").event_features.columns[0].kind == kind
        assert load(tmp_path / "e.csv", "hour:numeric").event_features.columns[0].kind == "numeric"
    (found,) = load(tmp_path / "e.csv", "hour:categorical").event_features.columns
    assert len(found.values) == MAX_WHOLE_CATEGORIES + 1


def test_every_form_of_the_table_is_the_same(path, tmp_path):
    expected = load(path, *NAMES)
    header, *rows = [line.split(",") for line in TABLE.splitlines()]
    columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    whole = {n: [int(x) for x in columns[n]] for n in ("user", "item", "time", "rating", "weekday")}
    flags = [{"true": True, "false": False}.get(x.lower()) for x in columns["logged_in"]]
    dwell = [float(x) if x else None for x in columns["dwell"]]
    devices = [x or None for x in columns["device"]]
    arrow = pa.table({**whole, "device": pa.array(devices).dictionary_encode(), "dwell": dwell,
                      "logged_in": flags})  # fmt: skip
    pq.write_table(arrow, tmp_path / "e.parquet")
    (tmp_path / "e.tsv").write_text(TABLE.replace(",", "\t"))
    named = {"user": "user_id:token", "item": "item_id:token", "time": "timestamp:float"}
    typed = "\t".join(named.get(n, f"{n}:token") for n in header)
    (tmp_path / "e.inter").write_text("\n".join([typed, *map("\t".join, rows)]) + "\n")
    floats = {**columns, "weekday": [f"{x}.0" for x in columns["weekday"]]}
    (tmp_path / "f.csv").write_text(
        "\n".join([",".join(header), *map(",".join, zip(*floats.values(), strict=True))]) + "\n"
    )
    for name in ("e.parquet", "e.tsv", "e.inter", "f.csv"):
        assert fingerprint(load(tmp_path / name, *NAMES)) == fingerprint(expected), name
    options = SequenceOptions(event_features=tuple(NAMES))
    tables = {"arrow": arrow, "dict": {n: arrow.column(n).to_pylist() for n in header}}
    pandas = pytest.importorskip("pandas")
    tables["pandas"] = arrow.to_pandas()
    assert isinstance(tables["pandas"], pandas.DataFrame)
    for name, table in tables.items():
        assert fingerprint(load_sequences(options, 0, table)) == fingerprint(expected), name
    assert fingerprint(load(path)) != fingerprint(expected)


def test_a_partition_can_be_a_feature(tmp_path):
    for channel, user in (("web", 1), ("shop", 2)):
        folder = tmp_path / "events" / f"channel={channel}"
        folder.mkdir(parents=True)
        pq.write_table(
            pa.table({"user": [user] * 4, "item": [1, 2, 3, 4], "time": [1, 2, 3, 4]}),
            folder / "part-0.parquet",
        )
    found = cells(load(tmp_path / "events", "channel"))
    assert found == {"channel": ["web"] * 4 + ["shop"] * 4}


def test_they_follow_their_events_through_cleaning(tmp_path):
    """Sorting by time, a least rating, duplicates, a core, sessions."""
    generator, rows = np.random.default_rng(0), []
    for number in range(300):
        user, item, time = generator.integers((12, 9, 40)).tolist()
        rows += [f"{user},{item},{1000 * time},{number % 5},n{number},{number}"]
    rows += [f"{row.rsplit(',', 2)[0]},again,-1" for row in rows[:40]]
    (tmp_path / "e.csv").write_text("\n".join(["user,item,time,rating,tag,number", *rows]) + "\n")
    options = {"min_rating": 1.0, "duplicates": "drop", "k_core": 3, "session_gap": 5000.0}
    dataset = load(tmp_path / "e.csv", "tag:categorical", "number", **options)
    lines = {int(row.rsplit(",", 1)[1]): row.split(",") for row in rows[:300]}
    events, labels = dataset.interactions, dataset.users.labels.to_pylist()
    assert 100 < len(events) < 240
    for at, number in enumerate(cells(dataset)["number"]):
        user, item, time, *_ = lines[int(number)]
        assert labels[events.user[at]].split("#")[0] == user
        assert dataset.items.labels[events.item[at]].as_py() == int(item)
        assert events.time[at] == int(time)
        trained = dataset.part[at] == TRAIN
        assert cells(dataset)["tag"][at] == (f"n{int(number)}" if trained else None)


def test_histories_hold_those_of_their_events(path):
    dataset = load(path, "device", "dwell")
    histories = dataset.histories(TRAIN)
    whole = dataset.event_features.entries
    np.testing.assert_array_equal(histories.features.value, whole.value[[0, 1, 4, 5]])
    taken = histories.take(np.array([1, 1, 0]))
    np.testing.assert_array_equal(taken.features.weight, whole.weight[[4, 5, 4, 5, 0, 1]])


def test_stored_and_read_again(path, tmp_path):
    dataset = load(path, *NAMES)
    save_dataset(dataset, tmp_path / "stored")
    again = load_stored(tmp_path / "stored")
    assert again.event_features.columns == dataset.event_features.columns
    for one, other in zip(again.event_features.cells, dataset.event_features.cells, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def test_others_are_read_as_the_columns_are(path):
    features = load(path, *NAMES).event_features
    given = {"device": ["phone", "fridge", None], "dwell": [5, None, "2.5"], "rating": [5.0, 4, 9],
             "logged_in": [True, None, "False"]}  # fmt: skip
    found, unknown = features.of(given, 3)
    assert unknown == 2  # a fridge and 9 stars
    assert [each.tolist() for each in found.cells[:1]] == [[0, -1, -1]]
    assert found.cells[1].tolist()[::2] == [5, 2.5]
    assert [found.cells[i].tolist() for i in (2, 3, 4)] == [[3, 2, -1], [-1] * 3, [1, -1, 0]]
    with pytest.raises(DataError, match="event feature dwell: 'long' is not a number"):
        features.of({"dwell": ["long"]}, 1)


def test_forms_of_a_cell():
    texts = [" a ", "TRUE", "1.0", "-2.", "1.50", "007", "NaN", "Null", "", None, "none"]
    expected = ["a", "true", "1", "-2", "1.50", "007", None, None, None, None, "none"]
    assert canonical(as_texts(texts)).to_pylist() == expected
    assert "none" not in MISSING


def test_inspect_gives_the_options_that_read_the_same(path):
    from hasten.config import AnyDataOptions

    given = AnyDataOptions(path=str(path), event_features=("device", "dwell:numeric"))
    found = inspect(given)
    assert "--set data.event_features=device,dwell:numeric" in found.options
    assert not any("columns.feature" in option for option in found.options)
    assert found.files[0]["columns"]["feature device"] == "device"


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        (TABLE, ["devise"], "events.csv: data.event_features=devise, but the header has no such "
         "column; did you mean 'device'"),
        (TABLE, ["device:numeric"], "line 2: column device: 'phone' is not a finite number"),
        (TABLE.replace("\n", ",empty\n", 1).replace("\n1", ",\n1").replace("\n2", ",\n2")
         .replace(",empty,", ",empty").rstrip() + ",\n", ["empty"], "no cell is filled"),
        ("1 2 3\n1 3 4\n", ["device"], "write the events as a table with a header"),
        ("1 10 11 12\n2 10 13 12 9\n3 10\n", ["device"], "write the events as a table with a"),
        ("user,item,split,a\n1,1,train,x\n1,2,test,y\n", ["split"], "which no model may read"),
    ],
)  # fmt: skip
def test_bad_columns_are_refused(path, text, columns, words):
    path.write_text(text)
    with pytest.raises(DataError) as error:
        load(path, *columns)
    assert words in str(error.value)


def test_a_few_cells_that_are_no_numbers_are_errors(tmp_path):
    rows = [f"{i % 9},{i % 7},{i},{i / 3:.3f}" for i in range(400)]
    rows[123] = rows[123].rsplit(",", 1)[0] + ",12 s"
    (tmp_path / "e.csv").write_text("\n".join(["user,item,time,dwell", *rows]) + "\n")
    with pytest.raises(DataError) as error:
        load(tmp_path / "e.csv", "dwell")
    assert "line 125: column dwell: '12 s' is not a finite number" in str(error.value)
    assert "--set data.event_features=dwell:categorical" in str(error.value)


def test_dates_and_lists_are_refused():
    table = {"user": [1, 1], "item": [1, 2], "when": pa.array([1, 2], pa.timestamp("s"))}
    with pytest.raises(DataError, match=r"data\.event_features=when: the column is of type"):
        load_sequences(
            SequenceOptions(event_features=("when",), columns={"user": "user"}), 0, table
        )


@pytest.mark.parametrize("value", [("a:number",), ("a", "a:numeric"), ("",)])
def test_wrong_options_are_refused(value):
    with pytest.raises(ValueError, match=r"categorical or numeric|names of columns"):
        SequenceOptions(event_features=value)


def test_other_options_have_no_such_key():
    assert "event_features" not in InteractionOptions.model_fields
