"""A file that is read block after block gives the columns of the whole file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.config import InteractionOptions
from hasten.data.readers import arrow, in_blocks, recognize, separated

ROWS = 1000


def table(ids, times):
    random = np.random.default_rng(0)
    number = random.integers(0, 60, (2, ROWS))
    columns = {
        "numbers": pa.array,
        "large": lambda n: pa.array(n * 10**12 - 5),
        "labels": lambda n: pa.array([f"id {i}" for i in n.tolist()]),
        "late": lambda n: pa.array([str(i) for i in n[:-1].tolist()] + ["last"]),
    }[ids]
    second = random.integers(0, 99, ROWS)
    kinds = {
        "seconds": pa.array(second),
        "fractions": pa.array(np.append(second[:-1], 0.5)),
        "dates": pa.array([f"2020-01-{1 + s % 28:02d}" for s in second.tolist()]),
    }
    part = pa.array(["train", "valid", "test"]).take(pa.array(random.integers(0, 3, ROWS)))
    return pa.table(
        {
            "user_id": columns(number[0]), "item_id": columns(number[1]),
            "rating": pa.array(random.integers(1, 6, ROWS)), "timestamp": kinds[times],
            "split": part,
        }
    )  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("ids", "times"),
    [("numbers", "seconds"), ("large", "fractions"), ("labels", "dates"), ("late", "seconds")],
)
def test_the_columns_are_those_of_the_whole_file(ids, times, form, tmp_path, monkeypatch):
    monkeypatch.setattr(in_blocks, "GROUP", 90)
    monkeypatch.setattr(in_blocks, "FEW", 20)
    monkeypatch.setattr(separated, "_BLOCK", 1500)
    monkeypatch.setattr(arrow, "_BATCH", 64)
    path, data = tmp_path / f"events.{form}", table(ids, times)
    if form == "parquet":
        pq.write_table(data, path, row_group_size=300)
    else:
        rows = zip(*(column.to_pylist() for column in data.columns), strict=True)
        lines = [",".join(data.column_names), *(",".join(map(str, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    reader, beginning, claim = recognize(path, InteractionOptions())
    blocks = []
    original = in_blocks.groups

    def counted(tables, rows):
        for group in original(tables, rows):
            blocks.append(len(group))
            yield group

    monkeypatch.setattr(in_blocks, "groups", counted)
    parsed = reader.read(beginning, claim)
    assert len(blocks) > 5
    opened = (
        arrow.open_parquet(path, claim)
        if form == "parquet"
        else separated.open_table(beginning, claim.layout, claim.notes)
    )
    whole = opened.parsed()
    assert parsed.ids.keys() == whole.ids.keys() == {"user", "item"}
    for role, expected in whole.ids.items():
        found = parsed.ids[role]
        assert found.codes.dtype == np.int32
        labels, others = (
            c.values.cast(pa.string()).take(pa.array(c.codes)) for c in (found, expected)
        )
        assert labels.equals(others)
        assert len(found.values.unique()) == len(found.values) == len(expected.values)
    for name in ("rating", "part"):
        assert np.array_equal(getattr(parsed, name), getattr(whole, name))
        assert getattr(parsed, name).dtype == getattr(whole, name).dtype
    assert np.array_equal(parsed.time.values, whole.time.values)
    assert parsed.time.values.dtype == whole.time.values.dtype
    assert parsed.time.unit == whole.time.unit
    assert (parsed.files, parsed.notes) == (whole.files, whole.notes)
