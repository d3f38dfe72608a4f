"""Stored datasets come back the same; the fingerprint follows the content alone."""

from __future__ import annotations

import dataclasses
import json
import resource

import numpy as np
import pyarrow as pa
import pytest

from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_dataset
from hasten.data.store import DESCRIPTION, FILES, fingerprint, load_stored, save_dataset
from hasten.data.tables import Dataset, Modality, Vocabulary
from hasten.errors import DataError, HastenError

TABLES = {
    "numbers": {"user": [1, 1, 1], "item": [3, 1, 2], "rating": [1.0, 2.0, 3.0], "time": [3, 2, 1]},
    "labels": {"user": ["é", "é", "é"], "item": ["c", "a", "b"]},
}


def make(kind: str) -> Dataset:
    return load_dataset(InteractionOptions(), seed=0, table=TABLES[kind])


@pytest.mark.parametrize("kind", TABLES)
def test_a_stored_dataset_comes_back_the_same(kind, tmp_path):
    dataset = make(kind)
    mark = save_dataset(dataset, tmp_path / "data")
    again = load_stored(tmp_path / "data")
    assert mark == fingerprint(dataset) == fingerprint(again)
    assert (again.name, again.split, again.source) == (dataset.name, dataset.split, dataset.source)
    assert again.users.labels.equals(dataset.users.labels)
    for name in ("user", "item", "rating", "time"):
        before, after = getattr(dataset.interactions, name), getattr(again.interactions, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert before.dtype == after.dtype
            assert np.array_equal(before, after)
    assert again.part.dtype == np.int8
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == sorted([*FILES, DESCRIPTION])


def test_names_are_stored(tmp_path):
    dataset = load_dataset(InteractionOptions(path="sequences"), seed=0)
    save_dataset(dataset, tmp_path)
    names = load_stored(tmp_path).items.names
    assert names is not None
    assert names.equals(dataset.items.names)


def test_the_fingerprint_follows_every_part_of_the_content():
    dataset = make("numbers")
    events = dataset.interactions
    changed = [
        dataclasses.replace(dataset, users=Vocabulary(pa.array([2]))),
        dataclasses.replace(dataset, items=Vocabulary(pa.array([1, 2, 4]))),
        dataclasses.replace(dataset, items=Vocabulary(pa.array(["1", "2", "3"]))),
        dataclasses.replace(
            dataset, items=Vocabulary(dataset.items.labels, pa.array(["x", None, "y"]))
        ),
        dataclasses.replace(
            dataset, items=Vocabulary(dataset.items.labels, pa.array(["x", "", "y"]))
        ),
        dataclasses.replace(dataset, part=dataset.part[::-1]),
        dataclasses.replace(
            dataset, interactions=dataclasses.replace(events, item=events.item[::-1])
        ),
        dataclasses.replace(dataset, interactions=dataclasses.replace(events, time=None)),
        dataclasses.replace(dataset, interactions=dataclasses.replace(events, rating=None)),
    ]
    assert len({fingerprint(d) for d in [dataset, *changed]}) == len(changed) + 1


def test_the_fingerprint_does_not_follow_paths_or_the_form_of_files(tmp_path):
    (tmp_path / "a.csv").write_text("user,item\n1,1\n1,2\n1,3\n")
    (tmp_path / "b.txt").write_text("1\t1\n1\t2\n1\t3\n")
    first, second = (
        load_dataset(InteractionOptions(path=str(tmp_path / f)), 0) for f in ("a.csv", "b.txt")
    )
    assert first.source != second.source
    assert fingerprint(first) == fingerprint(second)


def test_a_slice_of_labels_has_the_fingerprint_of_its_copy():
    labels = pa.array(["w", "x", "y", "z"])
    dataset = make("labels")
    sliced = dataclasses.replace(dataset, items=Vocabulary(labels.slice(1)))
    copied = dataclasses.replace(dataset, items=Vocabulary(pa.array(["x", "y", "z"])))
    assert fingerprint(sliced) == fingerprint(copied)


@pytest.mark.parametrize("name", [*FILES, DESCRIPTION])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_damage_is_noticed(name, damage, tmp_path):
    save_dataset(make("numbers"), tmp_path)
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        at = content.index(b"fingerprint") + 20 if name == DESCRIPTION else 6
        content[at] ^= 1
        path.write_bytes(content)
    with pytest.raises(DataError, match=str(tmp_path)):
        load_stored(tmp_path)


def test_other_data_under_the_same_description_are_noticed(tmp_path):
    save_dataset(make("numbers"), tmp_path / "a")
    other = {**TABLES["numbers"], "time": [1, 2, 3]}
    save_dataset(load_dataset(InteractionOptions(), seed=0, table=other), tmp_path / "b")
    (tmp_path / "a" / FILES[2]).write_bytes((tmp_path / "b" / FILES[2]).read_bytes())
    with pytest.raises(DataError, match="does not match its fingerprint"):
        load_stored(tmp_path / "a")


@pytest.mark.parametrize(
    "text", ["{}", "[]", "7", '{"version": 1}', "[" * 100_000, '{"version": ' * 100_000]
)
def test_a_description_that_is_none_is_damage(text, tmp_path):
    save_dataset(make("numbers"), tmp_path)
    (tmp_path / DESCRIPTION).write_text(text)
    with pytest.raises(DataError, match=r"damaged .*: restore it from a copy of the run"):
        load_stored(tmp_path)


def test_a_description_without_fingerprint_is_damage(tmp_path):
    save_dataset(make("numbers"), tmp_path)
    described = json.loads((tmp_path / DESCRIPTION).read_text())
    del described["fingerprint"]
    (tmp_path / DESCRIPTION).write_text(json.dumps(described))
    with pytest.raises(DataError, match=r"damaged .*'fingerprint'"):
        load_stored(tmp_path)


@pytest.mark.parametrize(
    ("limit", "file"), [(0, "users.parquet"), (1000, "items.parquet"), (10_000, "image_feat.npy")]
)
def test_a_full_disk_is_an_error_that_names_the_file(limit, file, tmp_path):
    table = {"user": [1, 1, 1, 1] * 10, "item": [10**12 + i * i for i in range(40)]}
    dataset = load_dataset(InteractionOptions(), seed=0, table=table)
    if file.endswith("npy"):
        values = np.ones((40, 100), np.float32)
        dataset = dataclasses.replace(dataset, modalities=(Modality.of("image", values),))
    elif limit:
        names = pa.array(list(map(str, np.random.default_rng(0).random(40))))
        dataset = dataclasses.replace(dataset, items=Vocabulary(dataset.items.labels, names))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(HastenError, match=f"{file}: cannot be written: ") as caught:
            save_dataset(dataset, tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not isinstance(caught.value, DataError)
    assert not [path for path in (tmp_path / "data").iterdir() if path.name.startswith(".")]


def test_a_newer_version_is_refused(tmp_path):
    save_dataset(make("numbers"), tmp_path)
    described = json.loads((tmp_path / DESCRIPTION).read_text())
    (tmp_path / DESCRIPTION).write_text(json.dumps(described | {"version": 2}))
    with pytest.raises(DataError, match="stored in format 2, but this hasten reads only format 1"):
        load_stored(tmp_path)
