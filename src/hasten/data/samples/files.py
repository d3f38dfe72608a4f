"""Built-in samples as files, at any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from hasten.atomic_write import atomic_path
from hasten.data.samples.base import SampleSet
from hasten.data.samples.features import make_gallery
from hasten.data.samples.graph import make_families
from hasten.data.samples.knowledge import make_library
from hasten.data.samples.sequences import make_sequences, make_sittings
from hasten.data.samples.typed_graph import make_medicine
from hasten.errors import DataError, UsageError

#: the samples by name; their sizes are optional arguments
SAMPLES: dict[str, Callable[..., SampleSet]] = {
    "sequences": make_sequences,
    "sittings": make_sittings,
    "families": make_families,
    "library": make_library,
    "gallery": make_gallery,
    "medicine": make_medicine,
}
_ENDINGS = (".csv", ".names.csv", ".kg.csv", ".image_feat.npy", ".text_feat.npy")


def write_sample(
    kind: str, out: Path, *sizes: int | None, seed: int = 0, **named: int | None
) -> dict[str, Any]:
    """Write a sample as ``X.csv``, with names as ``X.names.csv`` beside it.

    Triples about the items go to ``X.kg.csv``, features to ``X.NAME_feat.npy``. out: a .csv file,
    or a folder for ``KIND.csv``. sizes, named: as the sample's function takes them. Returns what
    was written, for ``--json``.

    Raises:
        DataError: no such kind, or sizes that do not go together.
        UsageError: a file exists already.
    """
    if kind not in SAMPLES:
        raise DataError(f"no sample {kind!r} can be made (known: {', '.join(SAMPLES)})")
    sample = SAMPLES[kind](*sizes, seed=seed, **named)
    data = out if out.suffix == ".csv" else out / f"{kind}.csv"
    files = {end: data.with_name(data.name.removesuffix(".csv") + end) for end in _ENDINGS}
    for path in files.values():
        if path.exists():
            raise UsageError(f"{path} exists already")
    data.parent.mkdir(parents=True, exist_ok=True)
    written = {"kind": kind, "data": str(data)}
    if sample.facts is not None:
        _write_csv(sample.facts, files[".kg.csv"])
    if sample.names:
        key = "item_id" if "item_id" in sample.table.column_names else "entity_id"
        named_ids = {key: list(sample.names), "name": list(sample.names.values())}
        _write_csv(pa.table(named_ids), files[".names.csv"])
        written["names"] = str(files[".names.csv"])
    _write_csv(sample.table, data)
    for name, values in sample.features.items():
        with files[f".{name}_feat.npy"].open("xb") as file:
            np.save(file, values, allow_pickle=False)
    return {**written, **_counts(sample), "seed": seed}


def _counts(sample: SampleSet) -> dict[str, int]:
    """The sizes of interactions, of typed edges or of triples."""
    table = sample.table

    def distinct(name: str) -> int:
        return len(pc.unique(table.column(name)))

    if "user_id" in table.column_names:
        sizes = {"users": distinct("user_id"), "items": distinct("item_id")}
        return {**sizes, "events": table.num_rows}
    if "x_id" in table.column_names:
        # every edge is in both directions, so one end holds every node
        nodes = table.select(["x_type", "x_id"]).group_by(["x_type", "x_id"]).aggregate([])
        sizes = {"nodes": nodes.num_rows, "types": distinct("x_type")}
        return {**sizes, "relations": distinct("relation"), "edges": table.num_rows}
    sizes = {"entities": len(sample.names), "relations": distinct("relation")}
    return {**sizes, "triples": table.num_rows}


def _write_csv(table: pa.Table, path: Path) -> None:
    """Write a table whose cells need no quotes, with a header, atomically."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write((",".join(table.column_names) + "\n").encode())
        options = arrow_csv.WriteOptions(include_header=False, quoting_style="none")
        arrow_csv.write_csv(table, file, options)
