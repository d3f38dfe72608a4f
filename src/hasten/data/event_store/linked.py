"""An event store in a run folder: hard links where the file system supports them, else copies."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from hasten.atomic_write import atomic_path
from hasten.config import InteractionOptions
from hasten.data.event_store.manifest import MANIFEST
from hasten.data.event_store.mapped import MappedDataset
from hasten.data.event_store.opened import open_store


def file_names(dataset: MappedDataset) -> list[str]:
    """The names of the files of a store."""
    return [*dataset.manifest.files, MANIFEST]


def link(dataset: MappedDataset, folder: Path) -> None:
    """Link the files of a store. They are never written again, so a link is as good as a copy."""
    for name in file_names(dataset):
        try:
            os.link(dataset.folder / name, folder / name)
        except OSError:  # another file system, or one without links
            with atomic_path(folder / name) as path:
                shutil.copyfile(dataset.folder / name, path)


def reopen(folder: Path, described: dict[str, Any]) -> MappedDataset:
    """The store that :func:`link` put there, divided as it was. described: ``dataset.json``."""
    dataset = open_store(folder, InteractionOptions.model_validate(described["options"]))
    return dataset.trained_on_validation() if described["refit"] else dataset
