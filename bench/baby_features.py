"""Events of the size of Amazon-Baby or Music4All, with features made from a seed.

``baby``: the real pairs of Amazon-Baby, 4,096-d and 384-d features (the published ones are not at
hand). ``music4all``: 14,125 users, 80,735 items, 4.04 million pairs, all made, 1,024-d and 384-d.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.data import Int64, data_folder
from hasten.data.tables import Dataset, Interactions, Modality, Source, Vocabulary

WIDTHS = {"baby": (4096, 384), "music4all": (1024, 384)}
ITEMS = {"baby": 7_050, "music4all": 80_735}


def events_of(name: str) -> tuple[Int64, Int64, np.ndarray]:
    """User, item and part of every event."""
    if name == "music4all":
        return _music4all()
    folder = data_folder() / "mm_baby_interactions" / "derived"
    parts = [np.loadtxt(folder / f"{part}.tsv", dtype=np.int64) for part in ("trn", "val", "tst")]
    table = np.concatenate(parts)
    part = np.repeat(np.arange(3), [len(rows) for rows in parts]).astype(np.int8)
    return table[:, 0], table[:, 1], part


def _music4all(
    users: int = 14_125, items: int = 80_735, pairs: int = 4_040_936
) -> tuple[Int64, Int64, np.ndarray]:
    """Users of very different zeal, items of very different fame; every pair once."""
    generator = np.random.Generator(np.random.Philox(key=11))
    zeal = generator.lognormal(0.0, 1.0, users)
    fame = 1.0 / (np.arange(items) + 50.0) ** 0.6
    ends = np.cumsum(fame) / fame.sum()
    found = np.zeros(0, np.int64)
    while len(found) < pairs:
        count = int((pairs - len(found)) * 1.3) + 1000
        user = np.searchsorted(np.cumsum(zeal) / zeal.sum(), generator.random(count))
        item = np.searchsorted(ends, generator.random(count))
        found = np.unique(np.concatenate([found, user * items + item]))
    kept = np.sort(generator.permutation(found)[:pairs])
    user, item = np.divmod(kept, items)
    return user, item, np.zeros(pairs, np.int8)


def features_of(name: str) -> dict[str, NDArray[np.float32]]:
    """[N, d] of each modality."""
    generator = np.random.Generator(np.random.Philox(key=5))
    return {
        modality: generator.standard_normal((ITEMS[name], width), np.float32)
        for modality, width in zip(("image", "text"), WIDTHS[name], strict=True)
    }


def modal_dataset(name: str) -> Dataset:
    """The events with features, as hasten holds them, users in order."""
    user, item, part = events_of(name)
    order = np.argsort(user, kind="stable")
    user, item, part = user[order], item[order], part[order]
    modalities = [Modality.of(modality, values) for modality, values in features_of(name).items()]
    return Dataset(
        name,
        Vocabulary(pa.array(np.arange(int(user.max()) + 1))),
        Vocabulary(pa.array(np.arange(ITEMS[name]))),
        Interactions(user, item),
        part,
        "given",
        Source("made"),
        modalities=tuple(modalities),
    )
