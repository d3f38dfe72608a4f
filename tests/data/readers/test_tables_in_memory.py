"""Tables in memory: every kind is read alike; what is no table is refused."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from hasten.config import InteractionOptions, TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.interactions.load import load_dataset
from hasten.data.store import fingerprint
from hasten.errors import DataError, UsageError

COLUMNS = {
    "user_id": [3, 3, 3, 5, 5, 5],
    "item_id": [1, 2, 9, 9, 2, 1],
    "rating": [1.0, 2.0, 3.5, 4.0, 5.0, 0.5],
    "timestamp": [10, 11, 12, 30, 20, 10],
}


class Foreign:
    """A table that only speaks Arrow, as polars and others do."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def hugging_face() -> datasets.Dataset:
    """The rows after others, which a selection leaves out."""
    columns = {name: [7, 7, *values] for name, values in COLUMNS.items()}
    return datasets.Dataset.from_dict(columns).select(range(2, 8))


def tables() -> dict[str, object]:
    arrow = pa.table(COLUMNS)
    frame = pd.DataFrame(COLUMNS)
    return {
        "polars": pl.DataFrame(COLUMNS),
        "polars, lazy": pl.LazyFrame(COLUMNS),
        "datasets": hugging_face(),
        "only train of datasets": datasets.DatasetDict(train=hugging_face()),
        "stream": arrow.to_reader(max_chunksize=4),
        "record batch": pa.record_batch(COLUMNS),
        "dict of lists": COLUMNS,
        "dict of arrays": {name: np.array(values) for name, values in COLUMNS.items()},
        "arrow": arrow,
        "pandas": frame,
        "pandas with an index": frame.set_index(pd.Index(list("abcdef"))),
        "foreign": Foreign(arrow),
        "dates": {
            **COLUMNS,
            "timestamp": np.array(COLUMNS["timestamp"]).astype("datetime64[s]"),
        },
    }


@pytest.mark.parametrize("kind", tables())
def test_every_kind_of_table_is_the_same_dataset(kind):
    dataset = load_dataset(InteractionOptions(), seed=0, table=tables()[kind])
    assert dataset.name == "table"
    assert fingerprint(dataset) == fingerprint(
        load_dataset(InteractionOptions(), seed=0, table=COLUMNS)
    )
    assert dataset.interactions.time is not None
    assert dataset.interactions.time.tolist() == [10, 11, 12, 10, 20, 30]
    assert dataset.part.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_relation_of_duckdb():
    import duckdb

    relation = duckdb.connect().from_arrow(pa.table(COLUMNS))
    assert fingerprint(load_dataset(InteractionOptions(), seed=0, table=relation)) == fingerprint(
        load_dataset(InteractionOptions(), seed=0, table=COLUMNS)
    )


@pytest.mark.parametrize(
    "kind", [pa.table, pl.DataFrame, pl.LazyFrame, pd.DataFrame, dict, Foreign]
)
def test_tables_by_part_are_a_given_split(kind):
    rows = {"validation": [(1, 12)], "train": [(1, 10), (1, 11), (2, 10)], "test": [(2, 12)]}
    tables = {}
    for part, pairs in rows.items():
        columns = {"user": [u for u, _ in pairs], "item": [i for _, i in pairs]}
        tables[part] = kind(pa.table(columns)) if kind is Foreign else kind(columns)
    dataset = load_dataset(InteractionOptions(), seed=0, table=tables)
    assert dataset.split.startswith("given")
    pairs = zip(
        dataset.users.take(dataset.interactions.user).to_pylist(),
        dataset.items.take(dataset.interactions.item).to_pylist(),
        dataset.part.tolist(),
        strict=True,
    )
    found = {part: [] for part in ("train", "validation", "test")}
    for user, item, part in pairs:
        found[list(found)[part]].append((user, item))
    assert found == rows


def test_triples_of_datasets_are_a_given_split():
    rows = {"train": ("abc", "bca"), "validation": ("a", "c"), "test": ("b", "a")}
    tables = datasets.DatasetDict({
        part: datasets.Dataset.from_dict({"head": [*h], "relation": ["r"] * len(h), "tail": [*t]})
        for part, (h, t) in rows.items()
    })  # fmt: skip
    graph = load_graph(TripleOptions(), seed=0, table=tables)
    assert graph.split.startswith("given")
    assert graph.part.tolist() == [0, 0, 0, 1, 2]
    assert graph.entities.take(graph.triples.head).to_pylist() == [*"abcab"]


def test_typed_edges_by_part_are_a_given_split():
    def edges(pairs):
        return pd.DataFrame(
            [("treats", d, "drug", g, "gene") for d, g in pairs],
            columns=["relation", "x_id", "x_type", "y_id", "y_type"],
        )

    tables = {"test": edges(["2a"]), "train": edges(["1a", "2b"])}
    graph = load_graph(TripleOptions(), seed=0, table=tables)
    assert graph.typed
    assert graph.part.tolist() == [0, 0, 2]
    tables["test"] = {"head": ["1"], "relation": ["treats"], "tail": ["a"]}
    with pytest.raises(DataError, match="some of the tables hold typed edges"):
        load_graph(TripleOptions(), seed=0, table=tables)


def test_labels_dates_and_categories_of_pandas():
    frame = pd.DataFrame(
        {
            "user": pd.Categorical(["b", "b", "b", "a", "a", "a"]),
            "item": ["x", "y", "z"] * 2,
            "time": [datetime.datetime(2020, 1, day, tzinfo=datetime.UTC) for day in range(1, 7)],
        }
    )
    dataset = load_dataset(InteractionOptions(), seed=0, table=frame)
    assert dataset.users.labels.to_pylist() == ["a", "b"]
    assert dataset.interactions.time is not None
    assert dataset.interactions.time[0] == 1577836800 + 3 * 86400


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (7, "a int is no table"),
        ([1, 2], "a list is no table"),
        ({"user": [1], "item": [1, 2]}, "cannot be read"),
        ({"user": [[1]], "item": [1]}, "2 dimensions"),
        ({"user": [object()], "item": [1]}, "cannot be read"),
        ({"user": [1], "thing": [1]}, "recognized as the item"),
        ({"user": [], "item": []}, "0 rows"),
        ({"user": [1, None], "item": [1, 2]}, "row 2: the user id is empty"),
        ({"user": [1.0, np.nan], "item": [1, 2]}, "row 2"),
        ({"user": [1, 2**53 + 2.0], "item": [1, 2]}, r"above 2\^53 may have lost digits"),
        ({"user": [1, 2**64], "item": [1, 2]}, "cannot be read as a table"),
        ({"user": [1, 2], "item": [1, 2], "time": [0.0, np.inf]}, "row 2"),
        (["a.parquet", "b.parquet"], r"a pattern such as 'events/\*\.parquet'"),
        (hugging_face().to_iterable_dataset(), "that is not streamed"),
        ({"full": pa.table(COLUMNS)}, r"named full; .* such as data\['full'\]"),
        ({"train": COLUMNS, "more": COLUMNS}, "named train, more; the names train, valid and"),
        ({"valid": COLUMNS, "test": COLUMNS}, "named valid, test"),
        ({"val": COLUMNS, "dev": COLUMNS, "train": COLUMNS}, "named val, dev, train"),
        (
            {"train": COLUMNS, "test": {"user": [1, None], "item": [1, 2]}},
            "table test: .*\n?.*row 2",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(table, says):
    with pytest.raises(DataError, match=says):
        load_dataset(InteractionOptions(), seed=0, table=table)


def test_large_numbers_can_be_labels():
    table = {"user": np.array([2**64 - 1] * 3, np.uint64), "item": [10**18, 2, 3]}
    dataset = load_dataset(InteractionOptions(ids="labels"), seed=0, table=table)
    assert dataset.users.labels.to_pylist() == [str(2**64 - 1)]
    assert dataset.items.labels.to_pylist() == ["1000000000000000000", "2", "3"]


def test_ids_of_64_bits_and_uuids_are_exact():
    numbers = [-(2**63), -5, 2**53 + 1, 2**63 - 1]
    uuids = [uuid.UUID(int=n << 100 | n) for n in range(4)]
    table = {"user": uuids, "item": numbers}
    for kind in (table, pd.DataFrame(table), pa.table(table)):
        dataset = load_dataset(
            InteractionOptions(split="ratio", ratios=(1, 0, 0)), seed=0, table=kind
        )
        assert dataset.items.labels.to_pylist() == numbers
        assert dataset.users.labels.to_pylist() == list(map(str, uuids))
    unsigned = {"user": np.array([2**64 - 1] * 3, np.uint64), "item": [1, 2, 3]}
    dataset = load_dataset(InteractionOptions(), seed=0, table=unsigned)
    assert dataset.users.labels.to_pylist() == [str(2**64 - 1)]
    whole = {"user": [Decimal(2**63 - 1)] * 3, "item": [1, 2, 3]}
    assert load_dataset(InteractionOptions(), seed=0, table=whole).users.labels.to_pylist() == [
        2**63 - 1
    ]


def test_options_of_files_have_no_effect_and_are_refused():
    with pytest.raises(UsageError, match=r"data\.separator has no effect on a table in memory"):
        load_dataset(InteractionOptions(separator=","), seed=0, table=COLUMNS)
