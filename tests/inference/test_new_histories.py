"""Recommend for histories with event features: lists, tables, files; missing and unknown values."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

import hasten
from hasten.cli.main import main
from hasten.errors import DataError, UsageError
from tests.contract.cases import CASES

LABELS = ("sasrec-events", "tisasrec-events")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder, found = tmp_path_factory.mktemp("runs"), {}
    for case in CASES:
        if case.label in LABELS:
            small = {**case.settings, "training.epochs": 2, "threads": 1, "device": "cpu"}
            out = str(folder / case.label)
            found[case.label] = (
                hasten.train(case.model, case.data, settings=small, out=out, quiet=True).loaded,
                case.data,
            )
    return found


def events_of(data, user):
    """The columns of the events of a user, in the order of time, as lists."""
    rows = np.flatnonzero(data["user_id"] == user)
    rows = rows[np.argsort(data["timestamp"][rows], kind="stable")]
    return {name: column[rows].tolist() for name, column in data.items()}


def same(found, expected):
    one, other = found.to_table(), expected.to_table()
    assert one["item_id"].to_pylist() == other["item_id"].to_pylist()
    np.testing.assert_allclose(one["score"], other["score"], 1e-5, 1e-6)


@pytest.mark.parametrize("label", LABELS)
def test_the_history_of_a_user_gives_what_the_user_gets(label, runs):
    """As lists, and as a table in every package, with rows in any order."""
    run, data = runs[label]
    expected, own = run.recommend([7, 3], 5), {u: events_of(data, u) for u in (7, 3)}
    features = {
        name: {user: events[name] for user, events in own.items()} for name in ("device", "dwell")
    }
    same(
        run.recommend(
            histories={u: events["item_id"] for u, events in own.items()},
            times={u: events["timestamp"] for u, events in own.items()},
            features=features, topk=5,
        ),
        expected,
    )  # fmt: skip
    columns = {name: own[7][name] + own[3][name] for name in data}
    order = [len(columns["item_id"]) - 1, *range(len(columns["item_id"]) - 1)]
    tables = [pa.table({n: [v[i] for i in order] for n, v in columns.items()}), pa.table(columns)]
    tables += [tables[1].to_pandas(), pytest.importorskip("polars").from_arrow(tables[1])]
    reverse = run.recommend([3, 7], 5)
    for number, table in enumerate(tables):
        same(run.recommend(histories=table, topk=5), expected if number else reverse)


def test_columns_that_are_not_given_are_missing(runs):
    run, data = runs["sasrec-events"]
    history = events_of(data, 7)["item_id"]
    none = [None] * len(history)
    plain = run.recommend(histories=history, topk=5)
    same(run.recommend(histories=history, features={"device": none, "dwell": none}, topk=5), plain)
    table = pa.table({"user": ["a"] * len(history), "item": history})
    same(run.recommend(histories=table, topk=5), plain)
    cells = {"device": ["phone"] * len(history)}
    other = run.recommend(histories=history, features=cells, topk=5)
    assert not np.allclose(other.score, plain.score)
    mean = run.dataset.event_features.columns[1].mean
    same(run.recommend(histories=history, features={"dwell": [mean] * len(none)}, topk=5), plain)


def test_unknown_values_are_missing_and_counted(runs):
    run, data = runs["sasrec-events"]
    history = events_of(data, 7)["item_id"]
    cells = {"device": ["telex"] * len(history)}
    found = run.recommend(histories=history, features=cells, topk=5)
    same(found, run.recommend(histories=history, topk=5))
    assert found.ignored == {"feature value": len(history)}


def test_features_stay_with_their_items(runs):
    """Unknown items are left out and times sort, both with the features."""
    run, _ = runs["tisasrec-events"]
    cells = {"device": ["phone", "tablet", "computer"], "dwell": [1.0, 20.0, None]}
    given = {name: [c[2], "telex" if name == "device" else 4, c[0], c[1]]
             for name, c in cells.items()}  # fmt: skip
    found = run.recommend(
        histories=[3, "no such", 1, 2], times=[300, 4, 100, 200], features=given, topk=5,
        unknown="ignore",
    )  # fmt: skip
    same(found, run.recommend(histories=[1, 2, 3], times=[100, 200, 300], features=cells, topk=5))
    assert found.ignored == {"item": 1, "feature value": 1}


def test_a_file_of_histories(runs, tmp_path, capsys):
    run, data = runs["sasrec-events"]
    events = events_of(data, 7)
    rows = zip(*(events[n] for n in ("item_id", "timestamp", "device", "dwell")), strict=True)
    lines = [f"visitor,{i},{t},{d},{'' if np.isnan(w) else w}" for i, t, d, w in rows]
    file = tmp_path / "new.csv"
    file.write_text("\n".join(["user_id,item_id,timestamp,device,dwell", *lines]) + "\n")
    told = ["recommend", str(run.path), "--history-file", str(file), "--topk", "5", "--json"]
    assert main([*told, "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)["recommendations"]
    expected = run.recommend([7], 5).to_table()
    assert [row["item_id"] for row in found] == expected["item_id"].to_pylist()
    np.testing.assert_allclose([row["score"] for row in found], expected["score"], 1e-5, 1e-6)


def test_what_is_wrong_is_said(runs, tmp_path):
    run, _ = runs["sasrec-events"]
    with pytest.raises(DataError, match=r"no event feature 'devise'; did you mean 'device'\?"):
        run.recommend(histories=[1, 2], features={"devise": ["x", "y"]})
    with pytest.raises(UsageError, match="has 2 items, 1 device"):
        run.recommend(histories=[1, 2], features={"device": ["x"]})
    with pytest.raises(UsageError, match="belong to histories"):
        run.recommend([1], features={"device": ["x"]})
    with pytest.raises(UsageError, match="are columns of this table"):
        run.recommend(histories=pa.table({"user": [1], "item": [1]}), times=[1])
    with pytest.raises(UsageError, match="a mapping from column to cells"):
        run.recommend(histories=[1], features=["x"])
    with pytest.raises(DataError, match="no column is recognized as the user"):
        run.recommend(histories=pa.table({"item": [1]}))
