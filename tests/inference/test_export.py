"""Tables written whole or not at all, and nothing in them that a spreadsheet would run."""

from __future__ import annotations

import csv
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.errors import HastenError, UsageError
from hasten.inference import export
from hasten.inference.export import check_target, write_table, write_tables

TEXTS = ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "x=1", "", "a,b", 'q"q', "línea"]


def table() -> pa.Table:
    count = len(TEXTS)
    return pa.table(
        {
            "user_id": pa.array(TEXTS),
            "item_name": pa.array(TEXTS),
            "rank": pa.array(range(1, count + 1), pa.int32()),
            "score": pa.array([-1.5] * count, pa.float32()),
        }
    )


def test_formulas_are_neutralised_in_csv_but_ids_and_numbers_are_exact(tmp_path):
    file = tmp_path / "out.csv"
    write_table(table(), file)
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    expected = [
        f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text for text in TEXTS
    ]
    assert [row["item_name"] for row in rows] == expected
    assert [row["user_id"] for row in rows] == TEXTS
    assert {row["score"] for row in rows} == {"-1.5"}
    assert [int(row["rank"]) for row in rows] == list(range(1, len(TEXTS) + 1))


def test_parquet_and_json_keep_the_texts(tmp_path):
    write_table(table(), tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").equals(table())
    write_table(table(), tmp_path / "out.json")
    rows = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert rows == table().to_pylist()
    write_table(table().slice(0, 0), tmp_path / "none.json")
    assert json.loads((tmp_path / "none.json").read_text()) == []


def test_json_over_several_batches(tmp_path):
    many = pa.table({"n": pa.array(range(25_000))})
    write_table(many, tmp_path / "many.json")
    assert len(json.loads((tmp_path / "many.json").read_text())) == 25_000


def test_a_named_format_wins_over_the_ending(tmp_path):
    write_table(table(), tmp_path / "out.txt", "json")
    assert (tmp_path / "out.txt").read_text().startswith("[\n{")


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    file.write_text("old")

    def fail(table, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(export._WRITERS, "json", fail)
    with pytest.raises(HastenError, match="No space left"):
        write_table(table(), file)
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_targets_are_refused_before_the_work(tmp_path):
    with pytest.raises(UsageError, match=r"the ending is not known; there are: parquet, csv, json"):
        check_target(tmp_path / "out.xlsx", None)
    with pytest.raises(UsageError, match="format 'xml' is not known"):
        check_target(tmp_path / "out.csv", "xml")
    with pytest.raises(UsageError, match="no folder"):
        check_target(tmp_path / "absent" / "out.csv", None)
    with pytest.raises(UsageError, match="is a folder"):
        check_target(tmp_path, "csv")


def test_only_a_regular_file_is_replaced(tmp_path):
    """Renaming over a device or a pipe would put a file in its place."""
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "link.csv").symlink_to(tmp_path / "mine.csv")
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe.csv")
    before = {path.name: path.lstat().st_mode for path in tmp_path.iterdir()}
    for name in ("link.csv", "dangling.csv", "pipe.csv"):
        with pytest.raises(UsageError, match="not a regular file"):
            check_target(tmp_path / name, None)
        with pytest.raises(HastenError, match="not a regular file"):
            write_table(table(), tmp_path / name)
    assert {path.name: path.lstat().st_mode for path in tmp_path.iterdir()} == before
    assert (tmp_path / "mine.csv").read_text() == "mine"
    check_target(tmp_path / "mine.csv", None)


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_tables_as_they_come_are_one_table_and_nothing_is_left_of_an_interrupted_export(
    tmp_path, format
):
    table = pa.table({"user_id": ["a", "=b", "c"], "name": ["=x", None, 'y"z'], "n": [1, 2, 3]})
    whole, parts = tmp_path / f"whole.{format}", tmp_path / f"parts.{format}"
    write_table(table, whole)
    write_tables((table.slice(n, 1) for n in range(3)), parts)
    if format == "parquet":
        assert pq.read_table(parts).equals(pq.read_table(whole))
    else:
        assert parts.read_bytes() == whole.read_bytes()

    def interrupted():
        yield table
        raise KeyboardInterrupt

    before = parts.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        write_tables(interrupted(), parts)
    assert parts.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [parts.name, whole.name]
