# ruff: noqa: E501 - one case a line
"""A corpus of bad files: each is one clear DataError that says where and what to do."""

from __future__ import annotations

import gzip
import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_dataset
from hasten.data.readers import separated
from hasten.errors import HastenError, OutOfMemoryError

HEAD = "user_id,item_id,rating,timestamp\n"
GOOD = "".join(f"{u},{i},4.0,{1_000_000_000 + u * 10 + i}\n" for u in (1, 2) for i in (1, 2, 3))
CSV = HEAD + GOOD
LINES = "1 1 5 1000000001\n1 2 4 1000000002\n1 3 3 1000000003\n2 1 5 1000000004\n"
SEQUENCES = "1 1 2 3 4\n2 2 3 4\n3 5 1 2 3 4 5\n"
INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "".join(
    f"{u}\t{i}\t3\t88{u}00{i}\n" for u in (1, 2) for i in (1, 2, 3)
)


@dataclass(frozen=True)
class Bad:
    """A bad file and what its error must say."""

    name: str
    file: str
    content: bytes
    says: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    others: dict[str, bytes] = field(default_factory=dict)


def bad(name: str, file: str, content: str | bytes, *says: str, **options: Any) -> Bad:
    others = options.pop("others", {})
    raw = content.encode() if isinstance(content, str) else content
    return Bad(name, file, raw, says, options, others)


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


THREE = {"user_id": [1, 1, 1], "item_id": [1, 2, 3]}

CORPUS = [
    # nothing in it
    bad("empty csv", "a.csv", "", "a.csv: 0 rows"),
    bad("blank lines only", "a.csv", "\n\n  \n", "0 rows"),
    bad("header only", "a.csv", HEAD, "0 rows, only a header"),
    bad("header and blank lines", "a.csv", HEAD + "\n\n", "0 rows, only a header"),
    bad("header only, no line end", "a.csv", HEAD.strip(), "0 rows"),
    bad("empty inter", "a.inter", "", "0 rows"),
    bad("inter header only", "a.inter", INTER.splitlines()[0] + "\n", "0 rows"),
    bad("empty gz", "a.csv.gz", gzip.compress(b""), "0 rows"),
    bad("empty parquet", "a.parquet", parquet(user_id=pa.array([], "i8"), item_id=pa.array([], "i8")), "0 rows"),
    bad("only users", "a.txt", "1\n2\n3\n", "no user has an item", format="sequences"),
    # columns
    bad("too few columns", "a.csv", CSV + "3,1,4.0\n", "line 8", "3 columns instead of 4", "'3,1,4.0'"),
    bad("too many columns", "a.csv", CSV + "3,1,4.0,5,6\n", "line 8: 5 columns instead of 4"),
    bad("one column", "a.csv", CSV + "3\n", "line 8: 1 column instead of 4"),
    bad("trailing separator", "a.csv", CSV + "3,1,4.0,1000000000,\n", "5 columns instead of 4"),
    bad("no user column", "a.csv", "foo,item_id\n1,2\n", "recognized as the user", "data.columns.user"),
    bad("no item column", "a.csv", "user_id,bar\n1,2\n", "recognized as the item", "data.columns.item"),
    bad("two user columns", "a.csv", "user_id,uid,item_id\n1,1,2\n", "'user_id' or 'uid'"),
    bad("column twice", "a.csv", "user_id,item_id,item_id\n1,1,2\n", "names 'item_id' twice"),
    bad("column that is not there", "a.csv", CSV, "'custmer'", "header has no such column", columns={"user": "custmer"}),
    bad("role that does not exist", "a.csv", CSV, "data.columns.usr", "did you mean 'user'", columns={"usr": "user_id"}),
    bad("ragged lines", "a.txt", LINES * 9 + "1 2 5\n", "line 37: 3 columns instead of 4"),
    bad("five cells a line", "a.txt", "1 2 3 4 5\n" * 3, "no format is recognized"),
    bad("column number too large", "a.txt", LINES, "1 to 4", columns={"user": "1", "item": "9"}),
    bad("column number twice", "a.txt", LINES, "one column twice", columns={"user": "1", "item": "1"}),
    bad("double colon broken", "a.dat", "1::2::3::978300760\n" * 5 + "1::2:3::978300760\n", "line 6"),
    # ids
    bad("2^63", "a.csv", CSV + f"{2**63},1,4.0,1\n", "line 8", "'9223372036854775808' does not fit into 64 bits", "--set data.ids=labels", ids="numbers"),
    bad("below -2^63", "a.csv", CSV + f"{-2**63 - 1},1,4.0,1\n", "line 8", "'-9223372036854775809' does not fit", ids="numbers"),
    bad("astronomic id", "a.csv", CSV + "9" * 40 + ",1,4.0,1\n", "line 8", "data.ids=labels", ids="numbers"),
    bad("endless id", "a.csv", CSV + "9" * 5000 + ",1,4.0,1\n", "line 8", "data.ids=labels", ids="numbers"),
    bad("negative zero", "a.csv", CSV + "-0,1,4.0,1\n", "line 8", "'-0' is not a whole number"),
    bad("fractional id", "a.csv", CSV + "1.5,1,4.0,1\n", "line 8", "'1.5' is not a whole number"),
    bad("exponent id", "a.csv", CSV + "1e3,1,4.0,1\n", "line 8", "'1e3' is not a whole number"),
    bad("empty user id", "a.csv", CSV + ",1,4.0,1\n", "line 8: the user id is empty"),
    bad("empty item id", "a.csv", CSV + "1, ,4.0,1\n", "line 8: the item id is empty"),
    bad("nan as id", "a.csv", CSV + "nan,1,4.0,1\n", "line 8", "missing value"),
    bad("None as item", "a.csv", CSV + "1,None,4.0,1\n", "line 8", "missing value", "data.ids=labels"),
    bad("labels where numbers are wanted", "a.csv", CSV + "x7,1,4.0,1\n", "line 8", "'x7' is not a whole number", ids="numbers"),
    bad("two spellings of a number", "a.csv", CSV + "01,1,4.0,1\n", "'1' and '01'", ids="numbers"),
    bad("header again", "a.csv", CSV + CSV, "line 8", "the header again"),
    bad("header again among labels", "a.csv", "user,item\na,x\na,y\na,z\nuser,item\nb,x\n", "line 5", "the header again"),
    bad("unprintable id", "a.csv", "user,item\na,x\na,y\u200b\na,z\n", "line 3", "cannot be printed"),
    bad("mark in the middle", "a.csv", CSV + "\ufeff3,1,4.0,1\n", "line 8", "cannot be printed"),
    bad("fractional id in lines", "a.txt", LINES + "1.5 1 5 1000000000\n", "line 5", "data.ids=labels"),
    bad("fractional item in sequences", "a.txt", SEQUENCES + "4 1 2.5 3 7 8\n", "line 4", "'2.5'"),
    bad("fractional id in recbole", "a.inter", INTER + "1.5\t1\t3\t881250949\n", "line 8"),
    # ratings
    bad("rating of text", "a.csv", CSV + "3,1,good,1\n", "line 8: rating 'good' is not a number"),
    bad("NaN rating", "a.csv", CSV + "3,1,NaN,1\n", "line 8: rating 'NaN' is not finite"),
    bad("infinite rating", "a.csv", CSV + "3,1,-inf,1\n", "line 8: rating '-inf' is not finite"),
    bad("overflowing rating", "a.csv", CSV + "3,1,1e400,1\n", "line 8", "too large"),
    bad("rating beyond float32", "a.csv", CSV + "3,1,1e39,1\n", "line 8", "too large"),
    bad("empty rating", "a.csv", CSV + "3,1,,1\n", "line 8: the rating is empty"),
    bad("decimal comma", "a.csv", HEAD.replace(",", ";") + "1;2;3,5;978300760\n", "line 2", "'3,5'"),
    bad("nothing rated high enough", "a.csv", CSV, "min_rating=5", "highest rating is 4", min_rating=5.0),
    bad("threshold without ratings", "a.csv", "user,item\n" + "1,1\n1,2\n1,3\n", "no ratings", min_rating=1.0),
    # times
    bad("time of text", "a.csv", CSV + "3,1,4.0,yesterday\n", "line 8: time 'yesterday' is not a number"),
    bad("empty time", "a.csv", CSV + "3,1,4.0,\n", "line 8: the time is empty"),
    bad("NaN time", "a.csv", CSV + "3,1,4.0,nan\n", "line 8", "'nan' is not a number"),
    bad("hexadecimal time", "a.csv", CSV + "3,1,4.0,0x3b9aca00\n", "line 8", "not a number"),
    bad("hexadecimal time late", "a.csv", HEAD + GOOD * 200 + "3,1,4.0,0x3b9aca00\n", "line 1202", "not a number"),
    bad("hexadecimal time in sequences", "a.txt", SEQUENCES, "line 2", "0x3", times="t.txt", others={"t.txt": b"1 1 2 3 4\n2 2 0x3 4\n3 5 6 7 8 9 10\n"}),
    bad("time out of range", "a.csv", CSV + "3,1,4.0,99999999999999999999\n", "line 8", "out of range"),
    bad("date among numbers", "a.csv", HEAD + GOOD * 200 + "3,1,4.0,2014-07-01\n", "line 1202", "'2014-07-01'"),
    bad("no such day", "a.csv", HEAD + "1,1,4,2014-02-28\n1,2,4,2014-02-30\n", "line 3", "no date of the calendar"),
    bad("zone missing", "a.csv", HEAD + "1,1,4,2014-02-01T10:00:00Z\n1,2,4,2014-02-02\n", "line 3", "with a zone"),
    bad("times of another user", "a.txt", SEQUENCES, "line 2", "is of user '9'", times="t.txt", others={"t.txt": b"1 1 2 3 4\n9 2 3 4\n3 5 6 7 8 9 10\n"}),
    bad("too few times", "a.txt", SEQUENCES, "line 2", "3 items, but 2 times", times="t.txt", others={"t.txt": b"1 1 2 3 4\n2 2 3\n3 5 6 7 8 9 10\n"}),
    bad("time file too short", "a.txt", SEQUENCES, "line 3", "no such line", times="t.txt", others={"t.txt": b"1 1 2 3 4\n2 2 3 4\n"}),
    bad("time file too long", "a.txt", SEQUENCES, "line 4", "only t.txt", times="t.txt", others={"t.txt": b"1 1 2 3 4\n2 2 3 4\n3 5 6 7 8 9 10\n4 1 2\n"}),
    bad("time file with text", "a.txt", SEQUENCES, "line 2", "'x' is not a number", times="t.txt", others={"t.txt": b"1 1 2 3 4\n2 2 x 4\n3 5 6 7 8 9 10\n"}),
    bad("no time file", "a.txt", SEQUENCES, "data.times", "no such file", times="missing.txt"),
    bad("times for a csv", "a.csv", CSV, "data.times goes with sequences", times="t.txt", others={"t.txt": b"1 2\n"}),
    # bytes
    bad("latin-1", "a.csv", CSV.encode() + b"3,caf\xe9,4.0,1\n", "not UTF-8", "0xe9 at offset", "line 8"),
    bad("latin-1 late", "a.csv", (HEAD + GOOD * 5000).encode() + b"3,caf\xe9,4.0,1\n", "not UTF-8", "line 30002"),
    bad("UTF-16", "a.csv", CSV.encode("utf-16"), "not UTF-8", "UTF-16", "offset 0"),
    bad("NUL", "a.csv", CSV.encode() + b"3,1\x00,4.0,1\n", "a NUL byte at offset", "line 8"),
    bad("NUL late", "a.csv", (HEAD + GOOD * 5000).encode() + b"3,\x00,4.0,1\n", "NUL", "line 30002"),
    bad("escape character", "a.csv", CSV.encode() + b"3,\x1b[2J,4.0,1\n", "control character 0x1b", "line 8"),
    bad("lone carriage return", "a.csv", CSV.encode() + b"3,1\r,4.0,1\n", "carriage return inside line 8"),
    bad("carriage return at the end", "a.csv", CSV.encode() + b"3,1,4.0,1\r", "carriage return"),
    bad("truncated UTF-8", "a.csv", CSV.encode() + b"3,\xe2\x82", "not UTF-8"),
    bad("truncated gz", "a.csv.gz", gzip.compress(CSV.encode() * 50)[:-20], "damaged or truncated"),
    bad("damaged gz", "a.csv.gz", gzip.compress(CSV.encode())[:30] + b"\x55" * 30, "damaged or truncated"),
    bad("not gz", "a.csv.gz", CSV, "not gzip"),
    bad("zip", "a.csv", b"PK\x03\x04" + b"\0" * 40, "zip archive"),
    bad("numpy", "a.npy", b"\x93NUMPY\x01\x00" + b"\0" * 40, "numpy array"),
    bad("xz", "a.csv.xz", b"\xfd7zXZ\x00\x00", "xz"),
    # quotes
    bad("quote that does not close", "a.csv", CSV + '"3,1,4.0,1\n4,1,4.0,1\n', "line 8", "double quote"),
    bad("quote over lines", "a.csv", CSV + '"3\n3",1,4.0,1\n', "line 8", "double quote"),
    bad("quote within a cell", "a.csv", CSV + '3"3,1,4.0,1\n', "line 8", "double quote"),
    bad("text after a quote", "a.csv", CSV + '"3"3,1,4.0,1\n', "line 8", "double quote"),
    bad("quotes between blanks", "a.txt", LINES + '"2" 3 5 1000000005\n', "line 5", "double quote"),
    bad("quotes in sequences", "a.txt", SEQUENCES + '4 "1" 2 3 4 5 6\n', "line 4", "double quote", format="sequences"),
    bad("tab in a quoted id", "a.csv", 'user,item\n"a\tb",x\n', "line 2", "cannot be printed"),
    # formats
    bad("unknown format", "a.csv", CSV, "unknown format 'cvs'", "delimited", format="cvs"),
    bad("nearest format", "a.csv", CSV, "did you mean 'delimited'", format="delimted"),
    bad("wrong format", "a.csv", CSV, "cannot be read as parquet", format="parquet"),
    bad("prose", "a.txt", "Dear reader,\nthis is a letter of\nseveral lines.\n", "no format is recognized"),
    bad("two labels a line", "a.txt", "anna tea\nanna milk\nbert tea\n", "labels", "--format"),
    bad("long separator", "a.csv", CSV, "data.separator", separator="<>"),
    bad("wrong separator", "a.csv", CSV, "no format is recognized", separator=";"),
    bad("sequence columns", "a.inter", "user_id:token\titem_id_list:token_seq\n1\t1 2 3\n", "recognized as the item"),
    bad("sequence as item", "a.inter", "user_id:token\titem_id:token_seq\n1\t1 2 3\n", "holds sequences"),
    bad("user twice", "a.txt", SEQUENCES + "2 7 8 9 10 11\n", "line 4", "line already (line 2)", format="sequences"),
    # parquet
    bad("damaged parquet", "a.parquet", b"PAR1" + b"x" * 100, "damaged Parquet"),
    bad("truncated parquet", "a.parquet", parquet(**THREE)[:-30], "damaged Parquet"),
    bad("parquet without item", "a.parquet", parquet(user_id=[1], foo=[2]), "recognized as the item"),
    bad("parquet with a missing id", "a.parquet", parquet(user_id=[1, None, 1], item_id=[1, 2, 3]), "row 2"),
    bad("parquet with fractions", "a.parquet", parquet(user_id=[1.0, 1.5, 2.0], item_id=[1, 2, 3]), "row 2", "'1.5'"),
    bad("parquet with fractional ids", "a.parquet", parquet(user_id=[1, 1, 1], item_id=[1, 2.5, 3]), "row 2", "'2.5'"),
    bad("parquet with inexact ids", "a.parquet", parquet(user_id=[1, 1, 2.0**53 + 2], item_id=[1, 2, 3]), "user ids", "above 2^53 may have lost digits", "as integers or as text"),
    bad("parquet with huge unsigned ids", "a.parquet", parquet(user_id=pa.array([1, 2**64 - 1], "u8"), item_id=[1, 2]), "row 2", ids="numbers"),
    bad("parquet with NaN", "a.parquet", parquet(**THREE, rating=[1.0, float("nan"), 2.0]), "row 2", "not finite"),
    bad("parquet with no rating", "a.parquet", parquet(**THREE, rating=[1.0, None, 2.0]), "row 2", "rating is empty"),
    bad("parquet with text ratings", "a.parquet", parquet(**THREE, rating=["1", "x", "2"]), "row 2", "'x'"),
    bad("parquet with no time", "a.parquet", parquet(**THREE, time=[1, None, 2]), "row 2", "time is"),
    bad("parquet with text times", "a.parquet", parquet(**THREE, time=["2014-01-01", "x", "2014-01-03"]), "row 2"),
    bad("parquet with lists", "a.parquet", parquet(user_id=[1], item_id=[[1, 2]]), "list"),
    bad("parquet with booleans", "a.parquet", parquet(user_id=[True], item_id=[1]), "bool"),
    bad("parquet with bytes", "a.parquet", parquet(user_id=[b"1"], item_id=[1]), "binary"),
    # what the events amount to
    bad("nobody with three events", "a.csv", "user,item\n1,1\n1,2\n2,1\n", "a.csv: no user has 3 events"),
    bad("duplicates refused", "a.csv", CSV + "1,1,4.0,1000000011\n", "1 duplicate event: repeating", duplicates="error"),
    bad("empty core", "a.csv", CSV, "k_core=50 leaves no event", k_core=50),
    bad("no given parts", "a.csv", CSV, "data.split=given", split="given"),
    bad("part that is none", "a.csv", "user,item,split\n" + "1,1,train\n" * 1200 + "1,2,tset\n", "line 1202", "tset"),
    bad("no training part", "a.csv", "user,item,split\n1,1,test\n", "no training event"),
    # names
    bad("no names file", "a.csv", CSV, "data.names", "no such file", names="n.csv"),
    bad("names without names", "a.csv", CSV, "line 1", "separator", names="n.csv", others={"n.csv": b"1\n2\n"}),
    bad("names of other items", "a.csv", CSV, "none of the 1 names", names="n.csv", others={"n.csv": b"77,x\n"}),
    bad("two names for one item", "a.csv", CSV, "line 2", "'x'", names="n.csv", others={"n.csv": b"1,x\n1,y\n"}),
    bad("names not UTF-8", "a.csv", CSV, "not UTF-8", names="n.csv", others={"n.csv": b"1,caf\xe9\n"}),
    bad("empty names", "a.csv", CSV, "0 rows", names="n.csv", others={"n.csv": b""}),
]  # fmt: skip


def test_the_corpus_is_large_and_its_names_are_unique():
    assert len({case.name for case in CORPUS}) == len(CORPUS) >= 60


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_bad_file_is_one_clear_error(case: Bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / case.file).write_bytes(case.content)
    for name, content in case.others.items():
        (tmp_path / name).write_bytes(content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(HastenError) as caught:
        load_dataset(InteractionOptions(path=case.file, **case.options), seed=0)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    for text in case.says:
        assert text in message, message
    assert len(message) < 4000
    assert sorted(tmp_path.iterdir()) == before


def test_the_first_five_problems_are_shown_and_all_are_counted(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(CSV + "1,1,x,1\n" * 7)
    with pytest.raises(HastenError) as caught:
        load_dataset(InteractionOptions(path=str(path)), seed=0)
    message = str(caught.value)
    assert "7 lines cannot be used" in message
    assert message.count("is not a number") == 5
    assert "and 2 more" in message
    assert "4 columns, user_id,item_id,rating,timestamp, separated by ','" in message


@pytest.mark.parametrize("name", ["missing.csv", "missing/folder", "ml-1m.csv"])
def test_a_missing_path_is_a_clear_error(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HastenError, match="no such file or folder"):
        load_dataset(InteractionOptions(path=name), seed=0)


def test_swallowed_lines_are_noticed_by_their_number_too(tmp_path, monkeypatch):
    monkeypatch.setattr(separated, "quotes_pair_up", lambda *_: True)
    path = tmp_path / "a.csv"
    path.write_text("user,item,note\na,x,n\na,y,n\na,z,n\n" + 'b,x,"n\nb,y,n"\n' + "b,z,n\n")
    with pytest.raises(HastenError, match="line 5"):
        load_dataset(InteractionOptions(path=str(path)), seed=0)


def test_control_characters_are_escaped_in_messages(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,item\na,x\u202e\na,y\na,z\n")
    with pytest.raises(HastenError) as caught:
        load_dataset(InteractionOptions(path=str(path)), seed=0)
    assert "\u202e" not in str(caught.value)
    assert "\\u202e" in str(caught.value)


def test_good_files_of_the_corpus_are_good(tmp_path):
    for name, content in (
        ("a.csv", CSV),
        ("b.txt", LINES),
        ("c.txt", SEQUENCES),
        ("d.inter", INTER),
    ):
        (tmp_path / name).write_text(content)
        dataset = load_dataset(InteractionOptions(path=str(tmp_path / name)), seed=0)
        assert len(dataset.interactions) > 3
        assert np.all(np.diff(dataset.interactions.user) >= 0)


def test_a_good_file_without_memory_to_read_it_is_not_called_damaged(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(**THREE))

    def fail(*_, **__):
        raise pa.ArrowMemoryError("malloc of size 8388608 failed")

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(OutOfMemoryError, match=r"out of memory .*8388608.* hasten data prepare"):
        load_dataset(InteractionOptions(path=str(path)), seed=0)
