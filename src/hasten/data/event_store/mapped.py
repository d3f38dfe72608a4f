"""A dataset whose events are in memory-mapped files."""

from __future__ import annotations

import hashlib
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.event_store import manifest
from hasten.data.event_store.manifest import EventManifest
from hasten.data.store_folder.files import map_column, map_vocabulary
from hasten.data.tables import (
    PART_NAMES,
    TEST,
    TRAIN,
    Dataset,
    Histories,
    Interactions,
    Source,
)


class MappedDataset(Dataset):
    """The events of a store. Processes of a machine that map it share one copy in the page cache.

    Each user's events are in the order of time, with train before valid before test: bounds[p] and
    bounds[p + 1] (int64 [U] each) are where the events of part p begin and end. options, refit: of
    the split. Columns of all
    events that are not in the files (``interactions.user``, ``part``) are made when first used.
    """

    def __init__(
        self,
        folder: Path,
        stored: EventManifest,
        split: str,
        bounds: list[Int64],
        notes: tuple[str, ...],
        options: dict[str, Any],
        refit: bool = False,
    ) -> None:
        files = tuple({k: s[k] for k in ("name", "sha256", "bytes")} for s in stored.sources)
        users, items = (map_vocabulary(folder / n) for n in (manifest.USERS, manifest.ITEMS))
        sizes = {n: int(np.sum(bounds[p + 1] - bounds[p])) for p, n in enumerate(PART_NAMES)}
        source = Source("store", stored.path, files, {**stored.counts, **sizes}, notes)
        values = {"name": stored.name, "users": users, "items": items, "split": split}
        values |= {"source": source, "facts": None, "modalities": ()}
        values |= {"folder": folder, "manifest": stored, "bounds": bounds}
        values |= {"options": options, "refit": refit}
        for name, value in values.items():  # the class it extends is frozen
            object.__setattr__(self, name, value)

    folder: Path
    manifest: EventManifest
    bounds: list[Int64]
    options: dict[str, Any]
    refit: bool

    @cached_property
    def item(self) -> NDArray[np.int32]:
        """int32 [n] the items, mapped."""
        column: NDArray[np.int32] = map_column(self.folder / manifest.ITEM_COLUMN, np.int32)
        return column

    @cached_property
    def time(self) -> Int64 | None:
        """int64 [n] Unix seconds, mapped."""
        return (
            map_column(self.folder / manifest.TIME_COLUMN, np.int64)
            if self.manifest.timed
            else None
        )

    @cached_property
    def interactions(self) -> Interactions:
        """All events in memory."""
        user = np.repeat(np.arange(len(self.users)), self.bounds[-1] - self.bounds[0])
        time = None if self.time is None else np.array(self.time)
        return Interactions(user, self.item.astype(np.int64), None, time)

    @cached_property
    def part(self) -> NDArray[np.int8]:
        """int8 [n] the part of each event."""
        sizes: Int64 = np.stack([e - b for b, e in pairwise(self.bounds)], axis=1)
        return np.repeat(np.tile(np.arange(3, dtype=np.int8), len(self.users)), sizes.reshape(-1))

    def histories(self, *parts: int) -> Histories:
        """Each user's items of the given parts, in the mapped files."""
        if sorted(parts) != list(range(min(parts), max(parts) + 1)):
            return super().histories(*parts)
        begins, ends = self.bounds[min(parts)], self.bounds[max(parts) + 1]
        whole = parts[0] == TRAIN and max(parts) == TEST
        offsets = np.append(begins, ends[-1:])
        return Histories(offsets, self.item, self.time, None if whole else ends)  # type: ignore[arg-type]

    def holds(self, part: int) -> bool:
        """Whether any event is in this part."""
        return bool(self.lengths(part).any())

    def lengths(self, *parts: int) -> Int64:
        """[U] how many events of these parts each user has."""
        lengths = np.zeros(len(self.users), np.int64)
        for part in parts:
            lengths += self.bounds[part + 1] - self.bounds[part]
        return lengths

    def item_counts(self, *parts: int) -> Int64:
        """[N] how many events of these parts each item has."""
        counts = np.zeros(len(self.items), np.int64)
        for block in self.histories(*parts).blocks():
            counts += np.bincount(block.items, minlength=len(self.items))
        return counts

    def in_memory(self) -> Dataset:
        """The same data in memory, for what reads all events anyway."""
        return Dataset(
            self.name, self.users, self.items, self.interactions, self.part, self.split, self.source
        )

    def trained_on_validation(self) -> MappedDataset:
        """The same events, with the validation part moved into the training part."""
        bounds = [self.bounds[0], self.bounds[2], *self.bounds[2:]]
        moved = self.source.counts["valid"]
        notes = (*self.source.notes, f"{moved:,} of validation are trained on (data.refit)")
        split = f"{self.split}, refitted on train and validation"
        return MappedDataset(
            self.folder, self.manifest, split, bounds, notes, self.options, refit=True
        )

    @property
    def reopening(self) -> dict[str, Any]:
        """What ``dataset.json`` holds to open the store again."""
        return {"kind": "store", "options": self.options, "refit": self.refit}

    @property
    def fingerprint(self) -> str:
        """Of the events and of how they are divided."""
        digest = hashlib.sha256(f"hasten divided events 1\n{self.manifest.fingerprint}\n".encode())
        for bound in self.bounds[1:-1]:
            digest.update(np.ascontiguousarray(bound, "<i8").data)
        return digest.hexdigest()
