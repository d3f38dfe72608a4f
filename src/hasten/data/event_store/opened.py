"""Open an event store as a dataset, with the split of the options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hasten.config import DataOptions, InteractionOptions
from hasten.data.columns.checks import counted
from hasten.data.event_store import cuts, manifest
from hasten.data.event_store.manifest import EventManifest
from hasten.data.event_store.mapped import MappedDataset
from hasten.data.store_folder.files import map_column
from hasten.data.store_folder.manifest import read_manifest
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
    stored = read_manifest(folder, EventManifest)
    values = options.model_dump(exclude_defaults=True)
    if "event_features" in values:
        raise UsageError(
            f"data.event_features: {folder} is a store, which holds users, items and times, no "
            "other columns; train from the files of events"
        )
    if others := [f"data.{key}" for key in values if key not in CHOSEN]:
        raise UsageError(
            f"{', '.join(others)} has no effect: {folder} is a store; give these options to "
            "hasten data prepare"
        )
    options = InteractionOptions.model_validate(
        {key: value for key, value in values.items() if key != "refit"}
    )
    offsets = map_column(folder / manifest.OFFSETS, np.int64)
    time = map_column(folder / manifest.TIME_COLUMN, np.int64) if stored.timed else None
    bounds, split = cuts.divide(np.array(offsets), time, options)
    notes = [*stored.notes, *stored.changed()]
    lengths = bounds[-1] - bounds[0]
    short = [int(np.sum(lengths == n)) for n in (1, 2)]
    if sum(short) and not split.startswith("global time"):
        notes.append(
            f"{counted(short[0], 'user')} with 1 event, {counted(short[1], 'user')} with 2: "
            "in train only, never tested"
        )
    stored_options = options.model_dump(mode="json", exclude_defaults=True, exclude={"path"})
    return MappedDataset(folder, stored, split, bounds, tuple(notes), stored_options)


def reopen(folder: Path, described: dict[str, Any]) -> MappedDataset:
    """The store in a run folder, divided as it was. described: ``dataset.json``."""
    dataset = open_store(folder, InteractionOptions.model_validate(described["options"]))
    return dataset.trained_on_validation() if described["refit"] else dataset
