"""Item names from the usual kinds of files."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hasten.data.readers.names import read_names, with_names
from hasten.data.tables import Vocabulary
from hasten.errors import DataError


@pytest.mark.parametrize(
    "content",
    [
        "1,Tea\n2,Milk\n",
        "item_id,name\n1,Tea\n2,Milk\n",
        "movieId,title,genres\n1,Tea,x\n2,Milk,y\n",
        "1::Tea::Drama\n2::Milk::Comedy\n",
        "1|Tea|1995||x\n2|Milk|1996||y\n",
        "1\tTea\n2\tMilk\n",
        "item_id:token\ttitle:token_seq\tyear:token\n1\tTea\t1\n2\tMilk\t2\n",
        "item_id:token\tyear:token\twhat:token_seq\n1\t1\tTea\n2\t2\tMilk\n",
        "year;item;name\n5;1;Tea\n6;2;Milk\n",
        '\ufeff"id","name"\r\n"1","Tea"\r\n\r\n"2","Milk"\r\n',
    ],
)
def test_usual_files_of_names(content, tmp_path):
    (tmp_path / "n").write_bytes(content.encode())
    assert read_names(tmp_path / "n") == {"1": "Tea", "2": "Milk"}


def test_names_may_hold_separators(tmp_path):
    (tmp_path / "n").write_text('1::Tea: hot, strong (1995)\n2::"Milk"\n')
    assert read_names(tmp_path / "n") == {"1": "Tea: hot, strong (1995)", "2": '"Milk"'}
    (tmp_path / "n").write_text('1,"Tea, hot"\n1,"Tea, hot"\n')
    assert read_names(tmp_path / "n") == {"1": "Tea, hot"}


def test_another_encoding_only_where_it_is_known(tmp_path):
    (tmp_path / "n").write_bytes("1::Café\n".encode("latin-1"))
    assert read_names(tmp_path / "n", "latin-1") == {"1": "Café"}
    with pytest.raises(DataError, match="not UTF-8"):
        read_names(tmp_path / "n")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("1,Tea\n2\n", "line 2: no id or no name"),
        ("1,Tea\n,Milk\n", "line 2: no id or no name"),
        ('1,Tea\n2,"Mi"lk\n', "line 2"),
        ("item_id,name\n", "only a header"),
        ("item_id:token\tyear:token\n1\t2\n", "no column of names"),
    ],
)
def test_bad_names_are_refused(content, says, tmp_path):
    (tmp_path / "n").write_text(content)
    with pytest.raises(DataError, match=says):
        read_names(tmp_path / "n")


def test_names_go_to_their_items_and_gaps_are_said():
    named, notes = with_names(
        Vocabulary(pa.array([1, 2, 30])), {"01": "Tea", "30.0": "", "99": "x"}
    )
    assert named.names is not None
    assert named.names.to_pylist() == ["Tea", None, None]
    assert notes == ["2 of 3 items have no name"]
    labels = Vocabulary(pa.array(["a", "b"]))
    named, notes = with_names(labels, {"b": "Bread", "a": "Apple"})
    assert named.names is not None
    assert named.names.to_pylist() == ["Apple", "Bread"]
    assert notes == []
