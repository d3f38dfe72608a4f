"""Lists of ids and new histories, in every form that is read, and each refusal."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.errors import DataError
from hasten.inference.inputs import read_histories, read_labels, split_times


def test_a_list_on_the_command_line():
    assert read_labels("a, b,a,,c", "user_id") == ["a", "b", "c"]
    many = [f"user-{number}" for number in range(2000)]  # longer than a path can be
    assert read_labels(",".join(many), "user_id") == many


def test_histories_with_other_columns(tmp_path):
    text = "item_id,user_id,device,paid\nb,u1,x,2\nc,u2,,9\na,u1,y,\n"
    (tmp_path / "new.csv").write_text(text)
    table = {"item_id": ["b", "c", "a"], "user_id": ["u1", "u2", "u1"], "device": ["x", None, "y"],
             "paid": [2, 9, None]}  # fmt: skip
    pq.write_table(pa.table(table), tmp_path / "new.parquet")
    for name in ("new.csv", "new.parquet"):
        _, _, cells = read_histories(tmp_path / name, ("device", "no such column"))
        assert cells == {"device": {"u1": ["x", "y"], "u2": [""]}}


@pytest.mark.parametrize(
    "text",
    [
        "a\nb,c\n\nd\n",  # without a header a line is an id, commas and all
        "\ufeffa\r\nb,c\r\nd",
        'user_id,other\na,1\n"b,c",2\nd,3\n',
        "other\tuser_id\n1\ta\n2\tb,c\n3\td\n",
        'user_id\na\n"b,c"\nd\n',
        '"other","user_id"\n"1","a"\n"2","b,c"\n"3","d"\n',
    ],
)
def test_a_file_of_ids(tmp_path, text):
    file = tmp_path / "users.csv"
    file.write_bytes(text.encode())
    assert read_labels(str(file), "user_id") == ["a", "b,c", "d"]


def test_a_parquet_file_of_ids(tmp_path):
    file = tmp_path / "users.parquet"
    pq.write_table(pa.table({"user_id": [3, 1, 3], "x": [0.0, 1.0, 2.0]}), file)
    assert read_labels(str(file), "user_id") == ["3", "1"]
    with pytest.raises(DataError, match="no column item_id; its columns are: user_id, x"):
        read_labels(str(file), "item_id")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "0 user_ids"), (b"\n\n", "0 user_ids"), (b"a\n\xff\n", "not UTF-8 at byte 2")],
)
def test_unusable_files_of_ids(tmp_path, content, message):
    file = tmp_path / "users.txt"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_labels(str(file), "user_id")


def test_a_missing_file_is_not_taken_for_an_id(tmp_path):
    for name in ("absent.csv", "absent.txt", "absent.parquet"):
        with pytest.raises(DataError, match="no such file"):
            read_labels(str(tmp_path / name), "user_id")
    with pytest.raises(DataError, match="no such file"):
        read_labels(str(tmp_path), "user_id")
    with pytest.raises(DataError, match="0 user_ids"):
        read_labels(",", "user_id")


def test_histories_with_and_without_times(tmp_path):
    file = tmp_path / "new.csv"
    file.write_text("item_id,user_id,timestamp\nb,u1,2\nc,u2,9\na,u1,1\nz,u1,2\n")
    assert read_histories(file) == (
        {"u1": ["b", "a", "z"], "u2": ["c"]},
        {"u1": [2, 1, 2], "u2": [9]},
        None,
    )
    file.write_text('"user_id","item_id"\n"u1","b"\nu1,a\n')
    assert read_histories(file) == ({"u1": ["b", "a"]}, None, None)


def test_histories_from_parquet(tmp_path):
    file = tmp_path / "new.parquet"
    pq.write_table(pa.table({"user_id": [1, 1], "item_id": [5, 6], "timestamp": [2, 1]}), file)
    assert read_histories(file) == ({"1": ["5", "6"]}, {"1": [2, 1]}, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column user_id, item_id"),
        (b"user_id,item_id\n", "0 events"),
        (b"user,item_id\nu,a\n", "no column user_id; its columns are: user, item_id"),
        (b"user_id,item_id\nu1,a\nu2\n", "line 3: 1 cells, expected 2"),
        (b"user_id,item_id\nu1,\n", "line 2: item_id is empty"),
        (b"user_id,item_id,timestamp\nu1,a,now\n", "line 2: timestamp 'now' is not a number"),
        (b"user_id,item_id,timestamp\nu1,a,nan\n", "line 2: timestamp 'nan' is not a number"),
        (b'user_id,item_id\nu1,"a\n', "line"),
        (b"user_id,item_id\n\xe9,a\n", "not UTF-8 at byte 16"),
        (b"PAR1", "no column"),
    ],
)
def test_unusable_histories(tmp_path, content, message):
    file = tmp_path / "new.csv"
    file.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_histories(file)


def test_times_on_the_command_line():
    assert split_times("3, 1.5,2e9") == [3, 1.5, 2e9]
    with pytest.raises(DataError, match=r"--history-times: timestamp 'noon' is not a number"):
        split_times("1,noon")


def test_a_file_that_only_claims_to_be_parquet(tmp_path):
    file = tmp_path / "new.parquet"
    file.write_bytes(b"user_id,item_id\nu,a\n")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        read_histories(file)
