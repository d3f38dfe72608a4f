"""Features that say nothing: the same pairs, and no item with its own features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import control_features as controls


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data" / "mm_tiktok"
    (folder / "derived").mkdir(parents=True)
    (folder / "derived" / "trn.tsv").write_text("0\t1\n1\t2\n")
    numbers = np.arange(40, dtype=np.float16)
    np.save(folder / "image_feat.npy", np.stack([numbers, numbers + 100], axis=1))
    np.save(folder / "audio_feat.npy", numbers[:, None] * 2)
    monkeypatch.setattr(controls, "data_folder", lambda: tmp_path / "data")
    return folder


def test_shuffled_items_have_all_features_of_one_other(source: Path, tmp_path: Path):
    made = controls.control_features("tiktok-shuffled", tmp_path / "build")
    image, audio = np.load(made / "image_feat.npy"), np.load(made / "audio_feat.npy")
    assert sorted(image[:, 0].tolist()) == list(range(40))
    np.testing.assert_array_equal(image[:, 1], image[:, 0] + 100)
    np.testing.assert_array_equal(audio[:, 0], image[:, 0] * 2)
    assert (image[:, 0] != np.arange(40)).mean() > 0.8
    assert (made / "derived" / "trn.tsv").read_text() == "0\t1\n1\t2\n"


def test_drawn_numbers_stand_beside_the_real_features(source: Path, tmp_path: Path):
    made = controls.control_features("tiktok-drawn", tmp_path / "build")
    np.testing.assert_array_equal(
        np.load(made / "image_feat.npy"), np.load(source / "image_feat.npy")
    )
    own = np.load(made / "own_feat.npy")
    assert own.shape == (40, 512)
    assert abs(float(own.mean())) < 0.05
    assert len(np.unique(own, axis=0)) == 40


def test_made_once(source: Path, tmp_path: Path):
    first = controls.control_features("tiktok-drawn", tmp_path / "build")
    (first / "own_feat.npy").unlink()
    assert not (
        controls.control_features("tiktok-drawn", tmp_path / "build") / "own_feat.npy"
    ).exists()


def test_no_other_controls(source: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="tiktok-shuffled and tiktok-drawn"):
        controls.control_features("tiktok-other", tmp_path / "build")
