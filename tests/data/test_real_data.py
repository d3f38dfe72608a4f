"""The real data sets give their published counts."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_dataset
from hasten.data.tables import Dataset

pytestmark = pytest.mark.data


def load(path, **options) -> Dataset:
    return load_dataset(InteractionOptions(path=str(path), **options), seed=0)


def sizes(dataset: Dataset) -> tuple[int, int, int]:
    return len(dataset.users), len(dataset.items), len(dataset.interactions)


def test_beauty(shared_data):
    dataset = load(shared_data / "seq_beauty")
    assert sizes(dataset) == (22_363, 12_101, 198_502)
    assert dataset.source.format == "sequences"
    lengths = np.bincount(dataset.interactions.user)
    assert (lengths.min(), np.median(lengths), lengths.max()) == (5, 6, 204)
    assert dataset.interactions.time is not None
    assert len(np.unique(dataset.interactions.time)) == 2_927
    first = dataset.histories(0, 1, 2).items[:5]
    assert dataset.items.take(first).to_pylist() == [7873, 6846, 4585, 1, 5406]
    digests = {f["name"]: f["sha256"][:8] for f in dataset.source.files}
    assert digests == {
        "Beauty_item_org_rank.txt": "b9561418",
        "Beauty_time_org_rank.txt": "4e6a6e30",
    }


def test_home(shared_data):
    dataset = load(shared_data / "seq_home_items")
    assert sizes(dataset) == (66_519, 28_237, 551_682)
    assert dataset.interactions.time is None


def test_positives_of_ml_1m_in_three_files(shared_data):
    folder = shared_data / "ml-1m" / "positives"
    as_given = load(folder)
    assert sizes(as_given) == (5_398, 3_522, 518_897)
    assert as_given.split.startswith("given")
    assert [as_given.source.counts[p] for p in ("train", "valid", "test")] == [
        463_020,
        12_528,
        43_349,
    ]
    merged = load(folder, split="leave-last-two-out")
    assert sizes(merged) == (5_398, 3_522, 518_897)
    assert merged.source.counts["test"] == merged.source.counts["valid"] == 5_390
    named = {k: str(folder / f"{n}_positives.parquet") for k, n in
             (("train", "train"), ("valid", "val"), ("test", "test"))}  # fmt: skip
    again = load_dataset(InteractionOptions(**named, split="leave-last-two-out"), seed=0)
    assert np.array_equal(again.interactions.item, merged.interactions.item)


def test_positives_of_ml_1m_as_lines(shared_data):
    dataset = load(shared_data / "ml-1m" / "derived" / "ml-1m-positives-with-time.txt.gz")
    assert sizes(dataset) == (5_398, 3_522, 518_897)
    lengths = np.bincount(dataset.interactions.user)
    assert np.median(lengths) == 59
    assert (lengths >= 50).sum() == 3_028


def test_pairs_of_ml_1m(shared_data):
    dataset = load(shared_data / "ml-1m" / "derived" / "ml-1m-pairs.txt.gz")
    assert sizes(dataset) == (6_040, 3_706, 1_000_209)
    threshold = load(shared_data / "ml-1m" / "derived" / "ml-1m-pairs.txt.gz", k_core=5)
    assert len(threshold.interactions) < 1_000_209


def test_ml_100k_as_atomic_files_and_as_published(shared_data):
    atomic = load(shared_data / "kgat_ml-100k")
    assert sizes(atomic) == (943, 1_682, 100_000)
    assert atomic.source.format == "recbole"
    assert atomic.items.names is not None
    assert atomic.items.names[0].as_py() == "Toy Story"
    raw = load(shared_data / "kgat_ml-100k" / "raw" / "u.data")
    assert raw.source.format == "lines"
    assert np.array_equal(raw.interactions.item, atomic.interactions.item)


def test_given_splits_of_other_families(shared_data):
    baby = load(shared_data / "mm_baby_interactions" / "derived")
    assert sizes(baby) == (19_445, 7_050, 160_792)
    books = load(shared_data / "cf_amazon-book_noKG")
    assert sizes(books) == (70_679, 24_915, 846_434)
    assert any("no valid part" in note for note in books.source.notes)
