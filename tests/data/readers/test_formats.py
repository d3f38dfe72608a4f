"""Every format is read exactly, recognized with a reason, and assumptions are said."""

from __future__ import annotations

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.config import InteractionOptions
from hasten.data.columns import text as text_files
from hasten.data.interactions.load import load_dataset
from hasten.data.readers import READERS, recognize, separated
from hasten.data.tables import Dataset

ROWS = [(1, 10, 4.5, 100), (1, 11, 3.0, 101), (1, 12, 2.5, 102), (7, 10, 1.0, 50)]


def load(path, **options) -> Dataset:
    return load_dataset(InteractionOptions(path=str(path), **options), seed=0)


def rows(dataset: Dataset) -> list[tuple]:
    """(user, item, rating, time) in the order of the dataset, as far as there are columns."""
    events = dataset.interactions
    columns = [
        dataset.users.take(events.user).to_pylist(),
        dataset.items.take(events.item).to_pylist(),
    ]
    columns += [c.tolist() for c in (events.rating, events.time) if c is not None]
    return list(zip(*columns, strict=True))


def text(separator: str, header: str | None = None) -> str:
    lines = [separator.join(map(str, row)) for row in ROWS]
    return "\n".join([*([header] if header else []), *lines]) + "\n"


def has_note(dataset: Dataset, words: str) -> bool:
    return any(words in note for note in dataset.source.notes)


@pytest.mark.parametrize("separator", [",", "\t", ";", "|", "::", " "])
def test_delimited_with_every_separator(separator, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text(separator, separator.join(("user_id", "item_id", "rating", "timestamp"))))
    dataset = load(path)
    assert rows(dataset) == ROWS
    assert dataset.source.format == "delimited"


@pytest.mark.parametrize(
    "header",
    [
        "userId,movieId,rating,timestamp",
        "USER,ITEM,Score,Time",
        "reviewerID,asin,overall,unixReviewTime",
        "user_id, item_id, rating, ts",
        '"userID","itemID","stars","date"',
    ],
)
def test_usual_column_names_are_recognized(header, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text(",", header))
    assert rows(load(path)) == ROWS


def test_columns_can_be_named_and_others_are_left_out(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("when,who,what,user\n5,a,x,1\n6,a,y,2\n7,a,z,3\n")
    dataset = load(path, columns={"user": "who", "item": "what", "time": "when"})
    assert rows(dataset) == [("a", "x", 5), ("a", "y", 6), ("a", "z", 7)]
    assert has_note(dataset, "columns not used: user")


def test_bom_crlf_gzip_blank_lines_and_no_last_line_end(tmp_path):
    plain = text(",", "user,item,rating,time")
    variants = {
        "bom.csv": b"\xef\xbb\xbf" + plain.encode(),
        "crlf.csv": plain.replace("\n", "\r\n").encode(),
        "blank.csv": b"\n" + plain.replace("\n7,", "\n\n7,").encode() + b"\n\n",
        "end.csv": plain.rstrip("\n").encode(),
        "zipped.csv.gz": gzip.compress(plain[:40].encode()) + gzip.compress(plain[40:].encode()),
        "quoted.csv": plain.replace("7,10", '"7","10"').encode(),
        "spaces.csv": plain.replace(",", " , ").encode(),
    }
    for name, content in variants.items():
        (tmp_path / name).write_bytes(content)
        assert rows(load(tmp_path / name)) == ROWS, name


def test_quoted_labels_may_hold_separators_and_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('user,item\n"Smith, J","6"" ruler"\n"Smith, J",pen\n"Smith, J",ink\n')
    dataset = load(path)
    assert dataset.users.labels.to_pylist() == ["Smith, J"]
    assert dataset.items.labels.to_pylist() == ['6" ruler', "ink", "pen"]


@pytest.mark.parametrize("separator", [",", "\t", ";", "|", "::", " ", "   ", " \t "])
def test_lines_without_header(separator, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(text(separator))
    dataset = load(path)
    assert rows(dataset) == ROWS
    assert has_note(dataset, "no header: columns taken as user item rating time")


def test_blanks_may_change_from_line_to_line(tmp_path):
    path = tmp_path / "a.txt"
    single = "".join(f"1 {i} {i} 9\n" for i in range(1500))  # more than is looked at first
    path.write_text(single + " 1\t2000  3 9 \n\n   \n")
    dataset = load(path)
    assert len(dataset.interactions) == 1501
    assert 2000 in dataset.items.labels.to_pylist()


def test_two_columns_and_the_meaning_of_a_third(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1 10\n1 11\n1 12\n2 10\n")
    assert rows(load(path)) == [(1, 10), (1, 11), (1, 12), (2, 10)]
    path.write_text("1 10 5\n1 11 4\n1 12 3\n")
    assert load(path).interactions.time is None
    path.write_text("1 10 978300760\n1 11 978300761\n1 12 978300762\n")
    dataset = load(path)
    assert dataset.interactions.rating is None
    assert has_note(dataset, "third column taken as the time")
    dataset = load(path, columns={"user": "1", "item": "2", "rating": "3"})
    assert dataset.interactions.time is None
    assert dataset.interactions.rating is not None


def test_columns_of_headerless_lines_by_number(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("10 1 5\n11 1 6\n12 1 7\n")
    dataset = load(path, columns={"item": "1", "user": "2", "time": "3"})
    assert rows(dataset) == [(1, 10, 5), (1, 11, 6), (1, 12, 7)]


def test_labels_without_header_when_told(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("anna tea\nanna milk\nanna bread\n")
    assert rows(load(path, format="lines")) == [
        ("anna", "tea"),
        ("anna", "milk"),
        ("anna", "bread"),
    ]


def test_sequences_keep_their_order(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("5 30 10 20 10\n\n2 7 8 9\n9\n3  1\t2 3 4 5 6 \n")
    dataset = load(path)
    assert dataset.source.format == "sequences"
    assert rows(dataset) == [
        *((2, i) for i in (7, 8, 9)),
        *((3, i) for i in (1, 2, 3, 4, 5, 6)),
        *((5, i) for i in (30, 10, 20, 10)),
    ]
    assert has_note(dataset, "1 user without items")
    assert has_note(dataset, "no times: the order of the file")


def test_sequences_with_times(tmp_path):
    (tmp_path / "a.txt").write_text("5 30 10 20 10\n2 7 8 9\n")
    (tmp_path / "t.txt").write_text("5 4 3 2 1\n2 7 7.5 9\n")
    dataset = load(tmp_path / "a.txt", times=str(tmp_path / "t.txt"))
    assert rows(dataset) == [
        (2, 7, 7),
        (2, 8, 7),
        (2, 9, 9),
        (5, 10, 1),
        (5, 20, 2),
        (5, 10, 3),
        (5, 30, 4),
    ]
    assert [f["name"] for f in dataset.source.files] == ["a.txt", "t.txt"]


def test_sequences_with_labels_and_commas(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("anna,tea,milk,tea\nbert,milk,oil\n")
    dataset = load(path, format="sequences", separator=",")
    assert rows(dataset)[:3] == [("anna", "tea"), ("anna", "milk"), ("anna", "tea")]


def test_lines_that_could_be_sequences_are_noted(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1 5 6\n2 6 7\n3 5 7\n")
    note = "every line has another user"
    assert has_note(load(path, split="ratio", ratios=(1, 0, 0)), note)


def test_recbole_with_item_names(tmp_path):
    (tmp_path / "x.inter").write_text(
        "item_id:token\tuser_id:token\trating:float\tweight:float\n"
        + "".join(f"{i}\t{u}\t{r}\t0\n" for u, i, r, _ in ROWS)
    )
    (tmp_path / "x.item").write_text(
        "item_id:token\tyear:token\ttitle:token_seq\n10\t1999\tTen Things\n12\t1950\tTwelve\n"
    )
    dataset = load(tmp_path)
    assert dataset.source.format == "recbole"
    assert rows(dataset) == [row[:3] for row in ROWS]
    assert dataset.items.names is not None
    assert dataset.items.names.to_pylist() == ["Ten Things", None, "Twelve"]
    assert has_note(dataset, "1 of 3 items have no name")
    assert has_note(dataset, "item names taken from x.item")
    assert has_note(dataset, "columns not used: weight")


@pytest.mark.parametrize(
    "kind", ["i8", "i4", "u2", "f8", "string", "large_string", "dictionary", "string_view"]
)
def test_parquet_ids_of_every_type(kind, tmp_path):
    users = pa.array([row[0] for row in ROWS])
    if kind in ("string", "large_string", "string_view"):
        users = users.cast(pa.string()).cast(getattr(pa, kind)())
    elif kind == "dictionary":
        users = users.cast(pa.string()).dictionary_encode()
    else:
        users = users.cast(pa.from_numpy_dtype(np.dtype(kind)))
    table = pa.table(
        {
            "user_id": users,
            "item_id": [row[1] for row in ROWS],
            "score": [row[2] for row in ROWS],
            "ts": pa.array([row[3] for row in ROWS]).cast(pa.timestamp("s")),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert rows(load(tmp_path / "a.parquet")) == ROWS


@pytest.mark.parametrize(("kind", "scale"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_times_of_every_unit(kind, scale, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "user,item,time\n" + "".join(f"1,{i},{(10**9 + i) * scale}\n" for i in range(4))
    )
    dataset = load(path, time_unit=kind)
    assert dataset.interactions.time is not None
    assert dataset.interactions.time.tolist() == [10**9 + i for i in range(4)]
    assert not has_note(dataset, "times")
    if kind != "s":
        assert has_note(load(path), f"they look like {kind}, not s")


@pytest.mark.parametrize(
    ("texts", "seconds"),
    [
        (("1970-01-02", "1970-01-03", "1970-01-04"), (86400, 172800, 259200)),
        (("1970-01-01 00:00:01", "1970-01-01 00:01", "1970-01-01T02:00:00.75"), (1, 60, 7200)),
        (("1970-01-01T01:00:00+01:00", "1970-01-01T00:00:05Z", "1970-01-01T00:00:06Z"), (0, 5, 6)),
        (("1.9", "2", "3e1"), (1, 2, 30)),
        (("-5", "-1", "7"), (-5, -1, 7)),
    ],
)
def test_times_as_dates_and_fractions(texts, seconds, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,item,time\n" + "".join(f"1,{i},{t}\n" for i, t in enumerate(texts)))
    dataset = load(path)
    assert dataset.interactions.time is not None
    assert tuple(dataset.interactions.time.tolist()) == seconds


def test_events_within_a_second_keep_their_order(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("user,item,time\n1,3,5.9\n1,1,5.1\n1,2,5.5\n")
    assert [row[1] for row in rows(load(path))] == [1, 2, 3]


def test_a_part_column_is_a_given_split(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("userID,itemID,x_label\n1,1,0\n1,2,0\n1,3,1\n1,4,2\n")
    dataset = load(path)
    assert dataset.part.tolist() == [0, 0, 1, 2]
    path.write_text("user,item,split\n1,1,left\n1,2,left\n1,3,right\n")
    assert has_note(load(path), "column 'split' does not name parts: ignored")


def test_recognition_says_why(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(text(",", "user,item,rating,time"))
    reader, _, claim = recognize(path, InteractionOptions())
    assert reader.name == "delimited"
    assert "user" in claim.reason
    assert claim.details["separator"] == ","


def test_no_two_readers_claim_the_same_file(tmp_path):
    header = "user\titem\trating\ttime"
    contents = {
        "delimited": text("\t", header),
        "lines": text("\t"),
        "sequences": "1 2 3 4 5 6\n2 3\n3 4 5 6\n",
        "recbole": text("\t", "user_id:token\titem_id:token\trating:float\ttimestamp:float"),
    }
    for expected, content in contents.items():
        path = tmp_path / "file"
        path.write_text(content)
        assert recognize(path, InteractionOptions())[0].name == expected
    assert set(contents) | {"parquet"} == set(READERS)


def test_a_file_larger_than_a_block_is_the_same_in_parts(tmp_path, monkeypatch):
    """Dictionaries of several blocks are unified, lines at block ends are whole."""
    monkeypatch.setattr(separated, "_BLOCK", 1 << 14)
    monkeypatch.setattr(text_files, "_BLOCK", 1000)
    path = tmp_path / "a.csv"
    count = 10_000
    generator = np.random.default_rng(0)
    users, items = generator.integers(0, 900, count), generator.integers(0, 500, count)
    times = generator.integers(10**9, 10**9 + 100, count)
    lines = [f"{u},{i},{t}\n" for u, i, t in zip(users, items, times, strict=True)]
    path.write_bytes(b"\xef\xbb\xbfuser,item,timestamp\r\n" + "".join(lines).encode())
    found = load(path)
    order = np.lexsort((np.arange(count), times, users))
    events = found.interactions
    assert np.array_equal(np.asarray(found.users.labels)[events.user], users[order])
    assert np.array_equal(np.asarray(found.items.labels)[events.item], items[order])
    assert events.time is not None
    assert np.array_equal(events.time, times[order])
