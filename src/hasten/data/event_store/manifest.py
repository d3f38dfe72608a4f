"""What the folder of an event store holds."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from hasten.data.store_folder import manifest
from hasten.data.store_folder.manifest import Manifest

USERS, ITEMS = "users.arrow", "items.arrow"
OFFSETS, ITEM_COLUMN, TIME_COLUMN = manifest.OFFSETS, "item.i4", "time.i8"


class EventManifest(Manifest):
    """The manifest of a store of events."""

    kind: ClassVar[str] = "hasten events"

    @property
    def timed(self) -> bool:
        """Whether the events have times."""
        return TIME_COLUMN in self.files


def holds_store(folder: Path) -> bool:
    """Whether a folder is a store of events."""
    return manifest.holds_store(folder, EventManifest)
