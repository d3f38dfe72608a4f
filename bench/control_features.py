"""TikTok with the features of other items, and with drawn numbers beside the real ones.

What a model of features gains from them is told by the same model on these:

- ``tiktok-shuffled``: every item has the features of another one, all modalities of the same;
- ``tiktok-drawn``: a third modality ``own`` of 512 normal numbers an item. Alone, and with no items
  alike, it gives an item something of its own to be known by, whatever its image and sound.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from bench.data import ROOT, data_folder

NAMES = ("tiktok-shuffled", "tiktok-drawn")
_SEED = 2026
_WIDTH = 512


def control_features(name: str, build: Path = ROOT / "build" / "bench-data") -> Path:
    """The folder: the pairs as they are, the features as above; made once."""
    if name not in NAMES:
        raise ValueError(f"{name}: there are only {' and '.join(NAMES)}")
    folder = build / name
    if folder.exists():
        return folder
    source = data_folder() / "mm_tiktok"
    generator = np.random.Generator(np.random.Philox(key=_SEED))
    features = {path.name: np.load(path) for path in sorted(source.glob("*_feat.npy"))}
    items = len(next(iter(features.values())))
    if name == "tiktok-shuffled":
        order = generator.permutation(items)
        features = {file: rows[order] for file, rows in features.items()}
    else:
        own = generator.standard_normal((items, _WIDTH), dtype=np.float32)
        features["own_feat.npy"] = own
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as scratch:
        made = Path(scratch) / name
        (made / "derived").mkdir(parents=True)
        for path in sorted((source / "derived").iterdir()):
            shutil.copyfile(path, made / "derived" / path.name)
        for file, rows in features.items():
            np.save(made / file, rows)
        made.rename(folder)
    return folder
