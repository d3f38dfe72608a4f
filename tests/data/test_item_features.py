"""The table of item features: what becomes of its columns, cold items, storing, refusals."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.config import SequenceOptions
from hasten.data.interactions.load_item_features import load_sequences
from hasten.data.store import fingerprint, load_stored, save_dataset
from hasten.data.tables import TRAIN
from hasten.errors import DataError

TABLE = """item_id,title,brand,tags,price
1,First,x,red|blue,1
2,Second,y,red,3
3,Third,x,,
4,Fourth,x,blue,11
9,Ninth,z,red|blue,5
"""


@pytest.fixture
def folder(tmp_path):
    """Items 1 to 3 are trained on, 4 is only tested, 9 is only in the table."""
    events = [f"{user},{item},{time}" for user in range(3) for time, item in enumerate((1, 2, 3))]
    events += ["0,1,3", "0,2,4", "1,3,3", "1,4,4"]
    (tmp_path / "events.csv").write_text("\n".join(["user,item,time", *events]) + "\n")
    (tmp_path / "items.csv").write_text(TABLE)
    return tmp_path


def load(folder, name="items.csv", **options):
    return load_sequences(
        SequenceOptions(
            path=str(folder / "events.csv"), item_features=str(folder / name), **options
        ),
        0,
    )


def matrix(dataset):
    """[N, K] as a table of numbers, and the names of its columns."""
    found, features = np.zeros((len(dataset.items), len(dataset.item_features.values))), None
    features = dataset.item_features
    found[features.item, features.value] = features.weight
    return found, features.values.to_pylist()


def test_columns_become_values(folder):
    dataset = load(folder)
    assert dataset.items.labels.to_pylist() == [1, 2, 3, 4, 9]
    found, names = matrix(dataset)
    assert names == ["brand=x", "brand=y", "brand=z", "tags=blue", "tags=red", "price"]
    trained = np.unique(dataset.interactions.item[dataset.part == TRAIN])
    known = np.array([1.0, 3.0])  # of items 1 and 2: item 3 has no price
    assert trained.tolist() == [0, 1, 2]
    price = [(p - known.mean()) / known.std() if p else 0 for p in (1, 3, 0, 11, 5)]
    expected = np.zeros((5, 6))
    expected[[0, 2, 3], 0] = expected[1, 1] = expected[4, 2] = 1
    expected[[0, 4], 3] = expected[[0, 4], 4] = 0.5
    expected[3, 3] = expected[1, 4] = 1
    expected[:, 5] = price
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert "items.csv: column title left out: a value for nearly every item" in dataset.source.notes
    codes, weights = dataset.item_features.padded(5)
    dense = np.zeros((5, 6))
    np.add.at(dense, (np.arange(5)[:, None], codes), weights)
    np.testing.assert_allclose(dense, expected, rtol=1e-6)


def test_other_forms_of_the_table_are_the_same(folder):
    expected = fingerprint(load(folder))
    rows = [line.split(",") for line in TABLE.splitlines()[1:]]
    columns = {
        "item_id": pa.array([int(row[0]) for row in rows]),
        "title": pa.array([row[1] for row in rows]),
        "brand": pa.array([row[2] for row in rows]),
        "tags": pa.array([row[3].split("|") if row[3] else None for row in rows]),
        "price": pa.array([float(row[4]) if row[4] else None for row in rows]),
    }
    pq.write_table(pa.table(columns), folder / "items.parquet")
    assert fingerprint(load(folder, "items.parquet")) == expected
    header = "item_id:token\ttitle:token_seq\tbrand:token\ttags:token_seq\tprice:float\n"
    body = "".join("\t".join(row).replace("|", " ") + "\n" for row in rows)
    (folder / "events.item").write_text(header + body)
    chosen = {"brand": "category", "tags": "categories", "price": "number"}
    assert fingerprint(load(folder, "events.item", item_columns=chosen)) == expected


def test_columns_can_be_chosen(folder):
    chosen = {"price": "category", "tags": "category"}
    _, names = matrix(load(folder, item_columns=chosen))
    assert names[:2] == ["price=1", "price=11"]
    assert "tags=red|blue" in names


def test_stored_and_read_again(folder):
    dataset = load(folder)
    save_dataset(dataset, folder / "stored")
    again = load_stored(folder / "stored")
    assert again.item_features.columns == dataset.item_features.columns
    assert again.item_features.scale == dataset.item_features.scale
    np.testing.assert_array_equal(matrix(again)[0], matrix(dataset)[0])
    assert matrix(again)[1] == matrix(dataset)[1]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("brand,price\nx,1\n", {}, "one of them must be item_id"),
        ("item_id,brand\n1,x\n2\n", {}, "line 3: 1 cells, the header has 2"),
        ("item_id,brand\n1,x\n1,y\n", {}, "line 3: item '1' is in line 2 too"),
        ("item_id,brand\n77,x\n78,x\n", {}, "no item of the interactions is in it"),
        ("item_id,brand\nabc,x\nabd,x\n", {}, "data.ids=labels"),
        ("item_id,name\n1,x\n2,y\n", {}, "no column can be a feature"),
        (TABLE, {"item_columns": {"brnd": "category"}}, "did you mean 'brand'"),
        (TABLE, {"item_columns": {"brand": "number"}}, "column brand: 'x' is not a number"),
    ],
)
def test_bad_tables_are_refused(folder, text, options, words):
    (folder / "items.csv").write_text(text)
    with pytest.raises(DataError, match=words):
        load(folder, **options)
