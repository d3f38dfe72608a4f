"""Convert files of events to an event store, in bounded memory.

Two passes: read in blocks and number the labels (:mod:`.collect`); divide the rows into ranges of
users and sort each (:mod:`.buckets`). The result is what :func:`~.interactions.assemble` makes in
memory: the same vocabularies, the same order.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hasten.config import InteractionOptions
from hasten.data.columns import times
from hasten.data.columns.checks import counted
from hasten.data.columns.label_digest import add_labels
from hasten.data.columns.text import file_digest
from hasten.data.event_store import manifest
from hasten.data.event_store.buckets import divide, sorted_ranges
from hasten.data.event_store.collect import collect
from hasten.data.event_store.manifest import EventManifest
from hasten.data.interactions.assemble import require_same_columns
from hasten.data.readers import names
from hasten.data.readers.blocks import open_blocks
from hasten.data.readers.table import Blocks
from hasten.data.sources import catalog
from hasten.data.sources.files import Files, locate
from hasten.data.store_folder.files import (
    describe,
    new_store,
    origin_of,
    save_column,
    save_vocabulary,
    write_manifest,
)
from hasten.data.tables import Vocabulary
from hasten.errors import DataError, UsageError

#: options of the events that a store is made with; those of the split are chosen when training
APPLIED = (
    "path", "train", "format", "names", "separator", "columns", "ids", "duplicates", "time_unit",
    "min_rating",
)  # fmt: skip
#: what is reported: (what is done, how much of it, all of it)
Report = Callable[[str, int, int], None]


def prepare(
    options: InteractionOptions,
    out: Path,
    overwrite: bool = False,
    report: Report = lambda *_: None,
) -> EventManifest:
    """Read the events that the options name and write a store.

    out: a folder that does not exist; overwrite: or a store, which is replaced at the end. An
    interrupted call leaves the folder as it was.

    Raises:
        DataError: what is wrong with the data, with file, line and text.
        UsageError: options that a store does not apply, or a folder that exists.
    """
    values = options.model_dump(exclude_defaults=True)
    if others := [f"data.{key}" for key in values if key not in APPLIED]:
        raise UsageError(
            f"{', '.join(others)}: not applied by data prepare; options of the split are given to "
            "hasten train STORE, others need the data in memory: hasten train MODEL FILE"
        )
    if catalog.registered(options.path) is not None:
        raise UsageError(f"{options.path} is small: train from it by its name")
    with new_store(out, overwrite, EventManifest) as folder:
        written = _write(options, locate(options), folder, report)
        write_manifest(folder, written)
    return written


def _write(
    options: InteractionOptions, files: Files, folder: Path, report: Report
) -> EventManifest:
    read, format_ = _open(files, options)
    scratch = folder / "scratch"
    scratch.mkdir()
    require_same_columns((blocks.rows.source, blocks.roles) for blocks in read)
    rows = [blocks.rows for blocks in read]
    collected = collect(read, scratch, options, lambda done, total: report("reading", done, total))
    users, user_at, counts, user_notes = collected.users.finished("user", rows, options.ids)
    items, item_at, _, item_notes = collected.items.finished("item", rows, options.ids)
    time_notes = times.unite(collected.times, options.time_unit)[2] if collected.time_type else []
    notes = [*files.notes, *(note for blocks in read for note in blocks.notes)]
    notes += [*user_notes, *item_notes, *time_notes]
    if options.min_rating is not None:
        below = counted(collected.read - len(collected), "event")
        notes.append(f"{below} rated below {options.min_rating:g} left out")
    item_vocabulary = Vocabulary(items)
    if files.names is not None:
        given = names.read_names(files.names)
        item_vocabulary, more = names.with_names(item_vocabulary, given)
        notes += more
    divided = divide(collected, user_at, item_at, counts)
    del user_at, item_at
    written = _Columns(folder, collected.time_type is not None)
    events_per_user, duplicates, unmoved = np.zeros(len(users), np.int64), 0, True
    for part in sorted_ranges(collected, divided, options):
        written.append(part.events.item, part.events.time)
        user = part.events.user  # of a range: sorted
        events_per_user[user[0] : user[-1] + 1] += np.bincount(user - user[0])
        duplicates, unmoved = duplicates + part.duplicates, unmoved and part.in_order
        report("sorting", written.rows, len(collected))
    report("sorting", len(collected), len(collected))
    shutil.rmtree(scratch)
    notes += _findings(options, duplicates, unmoved, collected.time_type is not None)
    offsets = np.concatenate([[0], np.cumsum(events_per_user)])
    described = written.close()
    described[manifest.OFFSETS] = save_column(folder / manifest.OFFSETS, offsets)
    digest = hashlib.sha256(b"hasten events 1\n")
    for name, vocabulary in (
        (manifest.USERS, Vocabulary(users)),
        (manifest.ITEMS, item_vocabulary),
    ):
        save_vocabulary(folder / name, vocabulary)
        add_labels(digest, vocabulary.labels, vocabulary.names)
        described[name] = describe(folder / name)
    for name in sorted(described.keys() - {manifest.USERS, manifest.ITEMS}):
        digest.update(f"{name} {described[name]['sha256']}\n".encode())
    counts_ = {"read": collected.read, "users": len(users), "items": len(items)}
    counts_ |= {"interactions": written.rows, "duplicates": duplicates}
    paths = [path for path, _ in files.parts]
    origins = [origin for blocks in read for origin in blocks.files]
    if files.names is not None:
        paths.append(files.names)
        origins.append(file_digest(files.names))
    sources = [origin_of(*each) for each in zip(paths, origins, strict=True)]
    notes = list(dict.fromkeys(notes))
    given = options.model_dump(mode="json", exclude_defaults=True)
    mark = digest.hexdigest()
    return EventManifest(
        files.name, format_, files.path, mark, counts_, notes, described, sources, given
    )


def _open(files: Files, options: InteractionOptions) -> tuple[list[Blocks], str]:
    """The files in blocks, and their formats."""
    sources, formats = [], set()
    for path, part in files.parts:
        blocks, name = open_blocks(path, options)
        if part is not None or "part" in blocks.roles:
            raise DataError(
                f"{path}: the data name their parts (train, valid, test), but a store is divided "
                "by the order in time: train from the files, or prepare a file without parts"
            )
        sources.append(blocks)
        formats.add(name)
    return sources, "+".join(sorted(formats))


def _findings(
    options: InteractionOptions, duplicates: int, in_order: bool, timed: bool
) -> list[str]:
    """The notes of :func:`~.interactions.assemble`. Raises DataError."""
    notes = []
    if duplicates and options.duplicates == "error":
        raise DataError(
            f"{counted(duplicates, 'duplicate event')}: repeating an earlier (user, item, time); "
            "--set data.duplicates=drop or keep"
        )
    if duplicates:
        did = "left out" if options.duplicates == "drop" else "kept"
        what = counted(duplicates, "duplicate event")
        notes.append(f"{what} (user, item, time) {did} (data.duplicates)")
    if not in_order:
        notes.append("times are not in the order of the file: events sorted by time (stably)")
    if not timed:
        notes.append("no times: the order of the file is taken as the order in time")
        if options.time_unit != "s":
            notes.append(f"data.time_unit={options.time_unit} has no effect: there are no times")
    return notes


class _Columns:
    """The columns of the events, written range after range."""

    def __init__(self, folder: Path, timed: bool) -> None:
        self.rows = 0
        names = (manifest.ITEM_COLUMN, manifest.TIME_COLUMN)[: 1 + timed]
        self._files: dict[str, tuple[IO[bytes], Any]] = {
            name: ((folder / name).open("wb"), hashlib.sha256()) for name in names
        }

    def append(self, item: NDArray[np.int32], time: NDArray[np.int64] | None) -> None:
        self.rows += len(item)
        for (file, digest), column in zip(self._files.values(), (item, time), strict=False):
            content = np.ascontiguousarray(column).data
            file.write(content)
            digest.update(content)

    def close(self) -> dict[str, dict[str, Any]]:
        """Close the files and describe them."""
        files = {}
        for name, (file, digest) in self._files.items():
            files[name] = {"bytes": file.tell(), "sha256": digest.hexdigest()}
            file.close()
        return files
