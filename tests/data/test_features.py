"""Events with features of the items: layouts, alignment, refusals, storing, the sample."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten.config import AnyDataOptions, FeatureOptions, PairOptions
from hasten.data.detect import load_any
from hasten.data.interactions import store_features
from hasten.data.interactions.load_features import load_features, load_pairs
from hasten.data.interactions.text_features import write_text_features
from hasten.data.overview import inspect
from hasten.data.samples.features import make_gallery
from hasten.data.samples.files import write_sample
from hasten.data.store import fingerprint, load_stored, save_dataset
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError, UsageError

ITEMS = 6


def matrix(width, rows=ITEMS, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


@pytest.fixture
def layout(tmp_path):
    """MMRec's: a .inter with x_label, and two modalities; item 5 has no event."""
    folder = tmp_path / "baby"
    folder.mkdir()
    lines = ["userID\titemID\trating\ttimestamp\tx_label"]
    for user in range(3):
        for place, item in enumerate((user, user + 1, (user + 3) % 5)):
            lines.append(f"{user}\t{item}\t5.0\t{100 + place}\t{place}")
    (folder / "baby.inter").write_text("\n".join(lines) + "\n")
    np.save(folder / "image_feat.npy", matrix(4))
    np.save(folder / "text_feat.npy", matrix(3, seed=1).astype(np.float16))
    return folder


def load(folder, features=True, **options):
    if not features:
        return load_pairs(PairOptions(path=str(folder), **options), 0)
    return load_features(FeatureOptions(path=str(folder), **options), 0)


def test_reads_the_layout_of_mmrec(layout):
    dataset = load(layout)
    assert dataset.source.format == "delimited+features"
    assert [m.name for m in dataset.modalities] == ["image", "text"]  # what is seen comes first
    assert [m.shape for m in dataset.modalities] == [(6, 4), (6, 3)]
    assert dataset.modalities[1].values.dtype == np.float16
    rows = np.asarray(dataset.items.labels)
    assert np.array_equal(dataset.modalities[0].values, matrix(4)[rows])
    assert set(dataset.part.tolist()) == {TRAIN, VALID, TEST}
    said = "\n".join(dataset.source.notes)
    assert "1 item with features and without interactions" in said
    assert "image features from image_feat.npy: 6 x 4 float32" in said
    assert len(dataset.source.files) == 3


def test_same_users_and_items_without_the_features(layout):
    with_features, without = load(layout), load(layout, features=False)
    assert without.modalities == ()
    assert without.items.labels.equals(with_features.items.labels)
    assert np.array_equal(without.part, with_features.part)
    assert fingerprint(with_features) != fingerprint(without)


def test_parts_in_a_folder_within_and_any_modality(layout, tmp_path):
    inner = tmp_path / "clips" / "derived"
    inner.mkdir(parents=True)
    for name, offset in (("trn", 0), ("val", 1), ("tst", 2)):
        rows = "".join(f"{u}\t{(u + offset) % 5}\n" for u in range(5))
        (inner / f"{name}.tsv").write_text(rows)
    (tmp_path / "clips" / "README.md").write_text("clips\n")
    for name in ("audio", "video-motion", "image"):
        np.save(tmp_path / "clips" / f"{name}_feat.npy", matrix(2, 5))
    dataset = load(tmp_path / "clips")
    assert [m.name for m in dataset.modalities] == ["image", "audio", "video-motion"]
    assert dataset.name == "clips"
    assert "interactions taken from derived" in "\n".join(dataset.source.notes)


def test_parquet_by_item_in_any_order_columns_or_lists(layout):
    (layout / "text_feat.npy").unlink()
    values = matrix(3, seed=1)
    order = np.array([3, 0, 5, 1, 4, 2])
    columns = {f"f{i}": values[order, i] for i in range(3)}
    pq.write_table(pa.table({"item_id": order, **columns}), layout / "text_feat.parquet")
    first = load(layout)
    pq.write_table(
        pa.table({"item_id": order, "vector": list(values[order])}), layout / "text_feat.parquet"
    )
    second = load(layout)
    rows = np.asarray(first.items.labels)
    for dataset in (first, second):
        assert np.array_equal(dataset.modalities[1].values, values[rows])
    assert fingerprint(first) == fingerprint(second)


def test_named_items_with_parquet_and_tables_in_memory(tmp_path):
    names = [f"p{i}" for i in range(6)]
    path = tmp_path / "looks.parquet"
    pq.write_table(pa.table({"item_id": names, "v": list(matrix(4))}), path)
    table = {"user_id": np.repeat(["a", "b", "c"], 5), "item_id": (names[:5] * 3)}
    options = FeatureOptions(features={"image": str(path)})
    dataset = load_features(options, 0, table)
    assert dataset.items.labels.to_pylist() == names
    assert np.array_equal(dataset.modalities[0].values, matrix(4))


def poked(value, width=4, row=2, column=1):
    values = matrix(width)
    values[row, column] = value
    return values


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (poked(np.nan), r"image_feat.npy: 1 value is no finite.*row 2, column 1 .*nan"),
        (poked(-np.inf), r"row 2, column 1 .*-inf"),
        (np.full((6, 40), np.nan), r"240 values are.*\.\.\. and 235 more"),
        (matrix(4).astype(np.float64) * 1e300, r"no finite"),
        (matrix(4, rows=5), r"the features disagree: image_feat.npy 5 rows, text_feat.npy 6"),
        (np.array([[1, "x"]] * 6, dtype=object), r"Python objects or a pickle, which is never"),
        (np.array([["a", "b"]] * 6), r"values of type <U1, not numbers"),
        (np.ones((6, 2), complex), r"complex128, not numbers"),
        (np.ones(6), r"shape 6; a row an item"),
        (np.ones((6, 2, 2)), r"shape 6 x 2 x 2"),
        (np.ones((0, 4)), r"shape 0 x 4"),
    ],
)
def test_bad_features_are_refused(layout, content, says):
    np.save(layout / "image_feat.npy", content, allow_pickle=content.dtype == object)
    with pytest.raises(DataError, match=f"(?s){says}"):
        load(layout)


def test_damaged_files_are_refused(layout):
    path = layout / "image_feat.npy"
    whole = path.read_bytes()
    for content in (b"", whole[:20], whole[:-8], b"PK\x03\x04" + whole, b"\x80\x04K\x01."):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"image_feat.npy"):
            load(layout)


def test_too_few_rows_name_the_items(layout):
    for name in ("image", "text"):
        np.save(layout / f"{name}_feat.npy", matrix(3, rows=4))
    with pytest.raises(DataError, match=r"no row for 1 item of 5: 4 \(it has 4 rows, for items 0"):
        load(layout)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"item_id": [0, 1, 2, 3, 3, 5], "x": [1.0] * 6}, r"row 4 \(from 0\): item '3' again"),
        ({"item_id": [0, 1, 2, 3, 9], "x": [1.0] * 5}, r"no row for 2 items of 6: 4, 5"),
        ({"item_id": list(range(6)), "x": [1.0] * 5 + [None]}, r"column 'x' has 1 empty cell"),
        ({"item_id": list(range(6)), "x": ["a"] * 6}, r"column 'x' holds no numbers"),
        ({"item_id": list(range(6))}, r"no column of features"),
        ({"item_id": list(range(6)), "x": [[1.0]] * 5 + [[1.0, 2.0]]}, r"row 5 .*has 2 features"),
        ({"item_id": list(range(6)), "x": [[1.0]] * 5 + [[None]]}, r"1 empty cell among"),
    ],
)
def test_bad_parquet_is_refused(layout, table, says):
    (layout / "text_feat.npy").unlink()
    pq.write_table(pa.table(table), layout / "text_feat.parquet")
    with pytest.raises(DataError, match=says):
        load(layout)


def test_missing_features_and_two_files_for_one(layout):
    pq.write_table(pa.table({"x": [1.0] * 6}), layout / "text_feat.parquet")
    with pytest.raises(DataError, match=r"both text_feat.npy and text_feat.parquet"):
        load(layout)
    options = FeatureOptions(path=str(layout), features={"audio": "audio.npy"})
    with pytest.raises(DataError, match=r"data.features.audio: .*no such file"):
        load_features(options, 0)
    for path in layout.glob("*_feat.*"):
        path.unlink()
    with pytest.raises(DataError, match=r"interactions, but no item features: image_feat.npy"):
        load(layout)


def test_labels_cannot_go_by_row_number(layout):
    text = (layout / "baby.inter").read_text().replace("\t4\t", "\tfour\t")
    (layout / "baby.inter").write_text(text)
    with pytest.raises(DataError, match=r"row i is item i, but the items are called"):
        load(layout, ids="labels")


def test_duplicate_and_empty_rows_are_counted(layout):
    values = matrix(4)
    values[[1, 2]] = values[0]
    values[[3, 4]] = 0
    np.save(layout / "image_feat.npy", values)
    said = load(layout).source.notes
    assert "image: 2 items with the features of another" in said
    assert "image: 2 items whose features are all zero" in said


def test_stored_with_a_copy_and_read_again(layout, tmp_path):
    dataset = load(layout)
    save_dataset(dataset, tmp_path / "stored")
    for path in layout.iterdir():
        path.unlink()
    again = load_stored(tmp_path / "stored")
    assert fingerprint(again) == fingerprint(dataset)
    for mine, theirs in zip(again.modalities, dataset.modalities, strict=True):
        assert np.array_equal(mine.values, theirs.values)
    np.save(tmp_path / "stored" / "image_feat.npy", matrix(4, seed=9))
    with pytest.raises(DataError, match=r"are not those that the run was begun with"):
        _ = load_stored(tmp_path / "stored").modalities[0].values
    (tmp_path / "stored" / "image_feat.npy").unlink()
    with pytest.raises(DataError, match=r"image_feat.npy missing"):
        load_stored(tmp_path / "stored")


def test_large_features_stay_where_they_are(layout, tmp_path, monkeypatch):
    monkeypatch.setattr(store_features, "COPIED", 100)
    dataset = load(layout)
    save_dataset(dataset, tmp_path / "stored")
    assert not list((tmp_path / "stored").glob("*.npy"))
    described = json.loads((tmp_path / "stored" / "dataset.json").read_text())["features"]
    assert [entry["copied"] for entry in described] == [False, False]
    again = load_stored(tmp_path / "stored")
    assert np.array_equal(again.modalities[0].values, dataset.modalities[0].values)
    np.save(layout / "image_feat.npy", matrix(4, seed=9))
    with pytest.raises(DataError, match=r"are not those that the run was begun with"):
        _ = load_stored(tmp_path / "stored").modalities[0].values
    (layout / "image_feat.npy").unlink()
    gone = load_stored(tmp_path / "stored")  # scoring needs none
    with pytest.raises(DataError, match=r"image features are gone.*put the file back"):
        _ = gone.modalities[0].values


def test_inspect_and_check_see_the_features(layout):
    found = inspect(AnyDataOptions(path=str(layout)))
    assert [file["format"] for file in found.files] == ["delimited", "features", "features"]
    assert "image: 6 x 4 float32, row i is item i" in found.files[1]["reason"]
    assert found.counts["features"] == {"image": 4, "text": 3}
    assert len(load_any(AnyDataOptions(path=str(layout)), 0).modalities) == 2


def test_sample_written_and_read_again(tmp_path):
    made = make_gallery()
    assert made.table.num_rows == 6000
    assert made.features["image"].shape == (2400, 48)
    write_sample("gallery", tmp_path / "g.csv", users=50, items=300, events=400, seed=3)
    dataset = load(tmp_path / "g.csv")
    assert [m.name for m in dataset.modalities] == ["image", "text"]
    assert len(dataset.items) == 300
    small = make_gallery(50, 300, 400, 3)
    rows = np.asarray(dataset.items.labels)
    assert np.array_equal(dataset.modalities[1].values, small.features["text"][rows])
    with pytest.raises(DataError, match="at least 200 items"):
        make_gallery(users=50, items=20)


def test_a_folder_with_features_named_after_its_events(tmp_path):
    """What ``hasten data make gallery --out FOLDER`` leaves there."""
    write_sample("gallery", tmp_path / "g.csv", users=50, items=300, events=400, seed=3)
    whole, file = load(tmp_path), load(tmp_path / "g.csv")
    assert [m.name for m in whole.modalities] == ["image", "text"]
    for found, wanted in zip(whole.modalities, file.modalities, strict=True):
        assert np.array_equal(found.values, wanted.values)


def test_features_of_texts_tell_what_they_are_about(layout, tmp_path):
    pytest.importorskip("sklearn")
    texts = tmp_path / "texts.csv"
    about = ("red wooden train for children", "blue metal car with battery")
    rows = [f"{i},{about[i % 2]} number {i}" for i in range(6)]
    texts.write_text("item_id,name\n" + "\n".join(rows) + "\n")
    out = layout / "words_feat.parquet"
    written = write_text_features(texts, out, 3)
    assert (written["items"], written["width"], written["empty"]) == (6, 3, 0)
    dataset = load(layout)
    values = dataset.modalities[-1].values
    assert dataset.modalities[-1].name == "words"
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    alike = unit @ unit.T
    same = np.asarray(dataset.items.labels) % 2
    assert alike[same[:, None] == same].min() > alike[same[:, None] != same].max()
    with pytest.raises(UsageError, match="exists already"):
        write_text_features(texts, out)
    with pytest.raises(UsageError, match="parquet"):
        write_text_features(texts, tmp_path / "x.csv")
    texts.write_text("item_id,name\n1,a\n2,b\n")
    with pytest.raises(DataError, match="no words"):
        write_text_features(texts, tmp_path / "x.parquet")
