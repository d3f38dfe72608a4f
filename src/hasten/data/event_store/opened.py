"""Open an event store as a dataset, with the split of the options."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hasten.config import DataOptions, InteractionOptions
from hasten.data.columns.checks import counted
from hasten.data.event_store import cuts, manifest
from hasten.data.event_store.mapped import MappedDataset, map_column
from hasten.errors import UsageError

#: options of the split, which are chosen when a store is opened (valid_share: of given parts only)
CHOSEN = (
    "path", "split", "ratios", "ratio_rounding", "time_window", "refit", "split_seed",
    "valid_share",
)  # fmt: skip


def open_store(folder: Path, options: DataOptions) -> MappedDataset:
    """The events of a store, divided as the options say.

    Raises:
        DataError: a damaged store, or the split leaves a part empty.
        UsageError: options that are applied when a store is made.
    """
    found = manifest.read_manifest(folder)
    given = options.model_dump(exclude_defaults=True)
    if others := [f"data.{key}" for key in given if key not in CHOSEN]:
        raise UsageError(
            f"{', '.join(others)} has no effect: {folder} is a store; give these options to "
            "hasten data prepare"
        )
    options = InteractionOptions.model_validate(
        {key: value for key, value in given.items() if key != "refit"}
    )
    offsets = map_column(folder / manifest.OFFSETS, np.int64)
    time = map_column(folder / manifest.TIME_COLUMN, np.int64) if found.timed else None
    bounds, split = cuts.divide(np.array(offsets), time, options)
    notes = [*found.notes, *found.changed()]
    lengths = bounds[-1] - bounds[0]
    short = [int(np.sum(lengths == n)) for n in (1, 2)]
    if sum(short) and not split.startswith("global time"):
        notes.append(
            f"{counted(short[0], 'user')} with 1 event, {counted(short[1], 'user')} with 2: "
            "in train only, never tested"
        )
    kept = options.model_dump(mode="json", exclude_defaults=True, exclude={"path"})
    return MappedDataset(folder, found, split, bounds, tuple(notes), kept)
