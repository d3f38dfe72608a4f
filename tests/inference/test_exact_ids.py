"""Ids are labels: every reader and every export holds them exactly as the data do."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hasten
from hasten.cli.main import main

NUMBERS = ["-9223372036854775808", "-5", "9007199254740993", "9223372036854775807"]
LABELS = ["=1+1", "@ann", "-5", "f47ac10b-58cc-4372-a567-0e02b2c3d479", "'q", "a b", "007", "ü☕"]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of an exported table as texts."""
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    found = json.loads(path.read_text("utf-8")) if path.suffix == ".json" else None
    found = pq.read_table(path).to_pylist() if found is None else found
    return [{name: str(value) for name, value in row.items()} for row in found]


@pytest.mark.parametrize("ids", [NUMBERS, LABELS], ids=["numbers", "labels"])
def test_recommendations_name_users_and_items_exactly(ids, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    events = [(user, item, str(time)) for user in ids for time, item in enumerate(ids)]
    Path("a.csv").write_text("\n".join(["user,item,time", *map(",".join, events)]) + "\n")
    hasten.train("pop", "a.csv", out=tmp_path / "run", quiet=True)
    Path("users.txt").write_text("\n".join(ids) + "\n")
    column = pa.array(list(map(int, ids)) if ids is NUMBERS else ids)
    pq.write_table(pa.table({"user_id": column}), "users.parquet")
    for users in ("users.txt", "users.parquet", ",".join(ids)):
        for out in ("o.csv", "o.json", "o.parquet"):
            arguments = ["--users", users, "--include-seen", "--out", out]
            assert main(["recommend", "run", *arguments]) == 0
            found = rows_of(Path(out))
            assert list(dict.fromkeys(row["user_id"] for row in found)) == ids
            assert {row["item_id"] for row in found} == set(ids)


@pytest.mark.parametrize("ids", [NUMBERS, LABELS], ids=["numbers", "labels"])
def test_predictions_and_embeddings_name_entities_exactly(ids, tmp_path):
    names = [f"{name}{more}" for more in ("1", "2", "3") for name in ids if len(name) < 19]
    names += ids
    pairs = [(head, tail) for head in names for tail in names if head != tail]
    table = {"head": [h for h, _ in pairs], "relation": [ids[0]] * len(pairs),
             "tail": [t for _, t in pairs]}  # fmt: skip
    settings = {"model.width": 4, "model.hidden": 4, "model.heads": 2, "threads": 1}
    hasten.train("hgt", table, settings=settings, epochs=1, out=tmp_path / "run", quiet=True)
    questions = tmp_path / "q.csv"
    with questions.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("head", "relation"), *((name, ids[0]) for name in names)])
    for end in ("csv", "json", "parquet"):
        out = tmp_path / f"p.{end}"
        run = str(tmp_path / "run")
        arguments = ["--questions", str(questions), "--topk", "2", "--known", "mark"]
        assert main(["predict", run, *arguments, "--out", str(out)]) == 0
        found = rows_of(out)
        assert list(dict.fromkeys(row["head"] for row in found)) == names
        assert {row["relation"] for row in found} == {ids[0]}
        assert {row["tail"] for row in found} <= set(names)
        if end != "json":
            assert main(["embed", run, "--out", str(tmp_path / f"e.{end}")]) == 0
            found = rows_of(tmp_path / f"e.{end}")
            assert {row["node_id"] for row in found} == set(names)
