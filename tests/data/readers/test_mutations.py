"""Good files with random damage: a clear error or exactly the events that the text holds."""

from __future__ import annotations

import io
import math
import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_dataset
from hasten.data.readers.columns import find_roles
from hasten.data.tables import Dataset
from hasten.errors import DataError, UsageError

_CSV = "user_id,item_id,rating,timestamp\n" + "".join(
    f"{u},{i * 7},{i}.5,{1_000_000_000 + 100 * u + i}\n" for u in (1, 2, 30) for i in (1, 2, 3, 4)
)
_LABELS = "user\titem\ttime\n" + "".join(
    f"u{u}\t{word}\t2014-0{u}-0{i + 1}\n"
    for u in (1, 2, 3)
    for i, word in enumerate(("tea", "milk", "café"))
)
_LINES = "".join(f"{u} {i} {i % 5 + 1} {978300760 + i}\n" for u in (1, 2, 3) for i in range(1, 6))
_DOUBLE = _LINES.replace(" ", "::")
_SEQUENCES = "".join(f"{u} " + " ".join(map(str, range(u, 2 * u + 4))) + "\n" for u in range(1, 7))
_TIMES = "".join(
    f"{u} " + " ".join(str(10**9 + k) for k in range(u, 2 * u + 4)) + "\n" for u in range(1, 7)
)
_INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "".join(
    f"{u}\t{i}\t3\t88{u}00{i}\n" for u in (1, 2) for i in (1, 2, 3)
)


def _parquet() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"user_id": [1, 1, 1, 2, 2, 2], "item_id": [1, 2, 3, 3, 2, 1]})
    pq.write_table(table, sink)
    return sink.getvalue()


BASES: dict[str, tuple[str, bytes]] = {
    "csv": ("a.csv", _CSV.encode()),
    "crlf": ("a.csv", b"\xef\xbb\xbf" + _CSV.replace("\n", "\r\n").encode()),
    "quoted": ("a.csv", re.sub(r"(?m)^(\d+),(\d+)", r'"\1","\2"', _CSV).encode()),
    "labels": ("a.tsv", _LABELS.encode()),
    "lines": ("a.txt", _LINES.encode()),
    "double": ("a.dat", _DOUBLE.encode()),
    "sequences": ("a.txt", _SEQUENCES.encode()),
    "inter": ("a.inter", _INTER.encode()),
    "parquet": ("a.parquet", _parquet()),
}
_SNIPPETS = (
    *(b",", b"::", b'"', b"-", b".", b"e", b"nan", b"inf", b"0x", b"1e999", b"99999999999", b"00"),
    *(b"#", b"x", b"+", b"_", b"\t", b" ", b"\n", b"\r\n", b"\r", b"\0", b"\xff", b"\xc3"),
    *(b"user_id", b":token", b"2014-01-01", b"1000000000000000000"),
    *(text.encode() for text in ("é", "\ufeff", "\u2028")),
)


@st.composite
def damage(draw: st.DrawFn, content: bytes) -> bytes:
    """The content after one to three cuts, insertions, repetitions or changed bytes."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(("insert", "delete", "change", "repeat", "cut", "line")))
        if kind == "insert":
            data[at:at] = draw(st.sampled_from(_SNIPPETS))
        elif kind == "delete":
            del data[at : at + draw(st.integers(1, 12))]
        elif kind == "change" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif kind == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 40))]
        elif kind == "cut":
            del data[at:]
        else:
            lines = bytes(data).split(b"\n")
            data = bytearray(b"\n".join(lines[1:] + lines[:1]))
    return bytes(data)


def check_whole(dataset: Dataset) -> None:
    """What holds for every dataset."""
    events = dataset.interactions
    n = len(events)
    assert n == len(dataset.part) > 0
    assert set(np.unique(events.user)) == set(range(len(dataset.users)))
    assert set(np.unique(events.item)) == set(range(len(dataset.items)))
    for vocabulary in (dataset.users, dataset.items):
        labels = vocabulary.labels.to_pylist()
        assert labels == sorted(set(labels))
        if vocabulary.numeric:
            assert all(-(2**63) <= label < 2**63 for label in labels)
        else:
            assert all(text and text == text.strip() and text.isprintable() for text in labels)
    assert events.rating is None or np.isfinite(events.rating).all()
    order = np.diff(events.user)
    assert (order >= 0).all()
    if events.time is not None:
        assert (np.diff(events.time)[order == 0] >= 0).all()
    assert set(np.unique(dataset.part)) <= {0, 1, 2}
    assert (dataset.part == 0).any()


def rows_of(dataset: Dataset) -> Counter[tuple[str, ...]]:
    """The events as texts: user, item, rating, time."""
    events = dataset.interactions
    columns = [
        dataset.users.take(events.user).to_pylist(),
        dataset.items.take(events.item).to_pylist(),
    ]
    if events.rating is not None:
        columns.append(events.rating.tolist())
    if events.time is not None:
        columns.append(events.time.tolist())
    return Counter(tuple(map(str, row)) for row in zip(*columns, strict=True))


def seconds(cell: str) -> int:
    if cell.count("-") == 2:
        return int(np.datetime64(cell, "s").astype(int))
    return int(cell) if cell.lstrip("-").isdecimal() else math.floor(float(cell))


def plain_rows(text: str, separator: str) -> Counter[tuple[str, ...]]:
    """The same, by the plainest reading of a text with a header and numbers in it."""
    lines = [line for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n") if line]
    header = [name.strip() for name in lines[0].split(separator)]
    roles = find_roles("", header, {})
    assert isinstance(roles, dict)
    rows: Counter[tuple[str, ...]] = Counter()
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(separator)]
        assert len(cells) == len(header)
        row = [cells[roles["user"]], cells[roles["item"]]]
        if "rating" in roles:
            row.append(str(float(np.float32(cells[roles["rating"]]))))
        if "time" in roles:
            cell = cells[roles["time"]]
            row.append(str(seconds(cell)))
        rows[tuple(row)] += 1
    return rows


def load_damaged(kind: str, content: bytes, times: bytes | None = None) -> Dataset | None:
    """The dataset of a damaged file, or None where it is refused (with exit code 2)."""
    name = BASES[kind][0]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        options = InteractionOptions(path=str(path))
        if times is not None:
            (Path(folder) / "t").write_bytes(times)
            options = options.model_copy(update={"times": str(Path(folder) / "t")})
        try:
            dataset = load_dataset(options, seed=0)
        except (DataError, UsageError):
            return None
    check_whole(dataset)
    return dataset


def same_events(kind: str, content: bytes, dataset: Dataset) -> None:
    """The dataset holds exactly what a plain reading of the damaged text holds."""
    if kind == "parquet" or b'"' in content:
        return
    text = content.decode()
    if dataset.source.format == "delimited":
        separator = "," if kind in ("csv", "crlf", "quoted") else "\t"
        if separator not in text.split("\n")[0]:
            return
        found = rows_of(dataset)
        if dataset.users.numeric and dataset.items.numeric:
            expected = Counter()
            for row, count in plain_rows(text, separator).items():
                user, item = (str(int(float(cell))) for cell in row[:2])
                expected[user, item, *row[2:]] += count
        else:
            expected = plain_rows(text, separator)
            if dataset.users.numeric or dataset.items.numeric:
                return
        assert found == expected
    elif dataset.source.format == "sequences":
        cells = [line.split() for line in text.removeprefix("\ufeff").split("\n")]
        assert len(dataset.interactions) == sum(max(0, len(row) - 1) for row in cells)
    elif dataset.source.format == "lines":
        lines = [line for line in text.split("\n") if line.strip("\ufeff\r \t")]
        assert len(dataset.interactions) == len(lines)


@pytest.mark.parametrize("kind", BASES)
def test_the_undamaged_files_load(kind):
    dataset = load_damaged(kind, BASES[kind][1])
    assert dataset is not None
    same_events(kind, BASES[kind][1], dataset)


def run(kind: str, data: st.DataObject) -> None:
    content = data.draw(damage(BASES[kind][1]))
    assume(content != BASES[kind][1])
    dataset = load_damaged(kind, content)
    if dataset is not None:
        same_events(kind, content, dataset)


quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
long = settings(max_examples=1250, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("kind", BASES)
@quick
@given(data=st.data())
def test_damage_is_refused_or_harmless(kind, data):
    run(kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", BASES)
@long
@given(data=st.data())
def test_more_damage_is_refused_or_harmless(kind, data):
    run(kind, data)


@quick
@given(data=st.data())
def test_damaged_times_are_refused_or_harmless(data):
    times = data.draw(damage(_TIMES.encode()))
    dataset = load_damaged("sequences", _SEQUENCES.encode(), times)
    if dataset is not None:
        assert dataset.interactions.time is not None
        lines = times.decode("utf-8-sig").split("\n")
        values = [seconds(t) for line in lines for t in line.split()[1:]]
        assert sorted(dataset.interactions.time.tolist()) == sorted(values)
