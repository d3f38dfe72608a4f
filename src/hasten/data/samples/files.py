"""Built-in samples of recommenders as files, at any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hasten.data.samples.base import new_files, write_csv
from hasten.data.samples.features import make_gallery
from hasten.data.samples.knowledge import make_library
from hasten.data.samples.sequences import make_sequences, make_sittings
from hasten.errors import DataError

SAMPLES = {
    "sequences": make_sequences,
    "sittings": make_sittings,
    "library": make_library,
    "gallery": make_gallery,
}


def write_sample(
    kind: str,
    out: Path,
    users: int | None = None,
    items: int | None = None,
    events: int | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Write a sample as CSV, with the items' names beside it as ``X.names.csv``.

    Triples about the items, if the sample has them, go to ``X.kg.csv``, features to
    ``X.NAME_feat.npy``. out: a .csv file, or a folder for ``KIND.csv``. Returns what was written,
    for ``--json``.

    Raises:
        DataError: no such kind, or sizes that do not go together.
        UsageError: a file exists already.
    """
    if kind not in SAMPLES:
        raise DataError(f"no sample {kind!r} can be made (known: {', '.join(SAMPLES)})")
    made = SAMPLES[kind](users, items, events, seed)
    endings = (".names.csv", ".kg.csv", ".image_feat.npy", ".text_feat.npy")
    data, names, facts, image, text = new_files(out, kind, *endings)
    features = {"image": image, "text": text}
    named = pa.table({"item_id": list(made.names), "name": list(made.names.values())})
    tables = [(named, names), (made.table, data)]
    if made.facts is not None:
        tables.insert(0, (made.facts, facts))
    for table, path in tables:
        write_csv(table, path)
    for name, values in made.features.items():
        with features[name].open("xb") as file:
            np.save(file, values, allow_pickle=False)
    item = made.table.column("item_id")
    return {
        "kind": kind,
        "data": str(data),
        "names": str(names),
        "users": len(pc.unique(made.table.column("user_id"))),
        "items": len(pc.unique(item)),
        "events": made.table.num_rows,
        "seed": seed,
    }
