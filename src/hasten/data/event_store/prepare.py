"""Convert files of events to an event store, in bounded memory.

Two passes: read in blocks and number the labels (:mod:`.collect`); divide the rows into ranges of
users and sort each (:mod:`.buckets`). The result is what :func:`~.interactions.assemble` makes in
memory: the same vocabularies, the same order.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.atomic_write import folder_or_backup, fsync_path, publish_folder, staging_folder
from hasten.config import InteractionOptions
from hasten.data.columns import times
from hasten.data.columns.checks import counted
from hasten.data.columns.label_digest import add_labels
from hasten.data.columns.text import file_digest
from hasten.data.event_store import manifest
from hasten.data.event_store.buckets import divide, sorted_ranges
from hasten.data.event_store.collect import collect
from hasten.data.event_store.manifest import Manifest
from hasten.data.interactions.assemble import require_same_columns
from hasten.data.readers import names
from hasten.data.readers.blocks import open_blocks
from hasten.data.readers.table import Blocks
from hasten.data.sources import catalogue
from hasten.data.sources.files import Files, locate
from hasten.data.tables import Vocabulary
from hasten.errors import DataError, UsageError, os_errors_as

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
) -> Manifest:
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
    if catalogue.registered(options.path) is not None:
        raise UsageError(f"{options.path} is small: train from it by its name")
    out = out.absolute()
    is_store = out.is_dir() and manifest.holds_store(out)
    if out.exists() and not (overwrite and is_store):
        remedy = "replace it with --overwrite" if is_store else "give the name of a new folder"
        raise UsageError(f"{out} exists already: {remedy}")
    with os_errors_as(DataError, "cannot be written", out), _staging(out) as folder:
        written = _write(options, locate(options), folder, report)
        (folder / manifest.MANIFEST).write_text(written.text(), "utf-8")
        for name in (*written.files, manifest.MANIFEST):
            fsync_path(folder / name)
        publish_folder(out)
    return written


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """The folder to write to, which nobody else writes to. It is removed unless it is published."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if folder_or_backup(out) != out:  # an interrupted replacement
        folder_or_backup(out).rename(out)
    folder = staging_folder(out)
    folder.mkdir(exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{out} is being prepared by another process") from None
        try:
            for entry in folder.iterdir():  # of a call that was killed
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            yield folder
        finally:
            if folder.exists():
                shutil.rmtree(folder)
    finally:
        os.close(lock)


def _write(options: InteractionOptions, files: Files, folder: Path, report: Report) -> Manifest:
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
    first = divide(collected, user_at, item_at, counts)
    del user_at, item_at
    written = _Columns(folder, collected.time_type is not None)
    events_per_user, duplicates, unmoved = np.zeros(len(users), np.int64), 0, True
    for part in sorted_ranges(collected, first, counts, options):
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
    described[manifest.OFFSETS] = _save(folder / manifest.OFFSETS, offsets)
    digest = hashlib.sha256(b"hasten events 1\n")
    for name, vocabulary in (
        (manifest.USERS, Vocabulary(users)),
        (manifest.ITEMS, item_vocabulary),
    ):
        _save_vocabulary(folder / name, vocabulary)
        add_labels(digest, vocabulary.labels, vocabulary.names)
        described[name] = _describe(folder / name)
    for name in sorted(described.keys() - {manifest.USERS, manifest.ITEMS}):
        digest.update(f"{name} {described[name]['sha256']}\n".encode())
    counts_ = {"read": collected.read, "users": len(users), "items": len(items)}
    counts_ |= {"interactions": written.rows, "duplicates": duplicates}
    paths = [path for path, _ in files.parts]
    origins = [origin for blocks in read for origin in blocks.files]
    if files.names is not None:
        paths.append(files.names)
        origins.append(file_digest(files.names))
    sources = [_origin(*each) for each in zip(paths, origins, strict=True)]
    notes = list(dict.fromkeys(notes))
    given = options.model_dump(mode="json", exclude_defaults=True)
    mark = digest.hexdigest()
    return Manifest(
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


def _save(path: Path, values: NDArray[np.int64]) -> dict[str, Any]:
    values.tofile(path)
    return _describe(path)


def _save_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    columns = {"label": vocabulary.labels}
    if vocabulary.names is not None:
        columns["name"] = vocabulary.names
    table = pa.table(columns).combine_chunks()
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def _describe(path: Path) -> dict[str, Any]:
    return {key: value for key, value in file_digest(path).items() if key != "name"}


def _origin(path: Path, origin: dict[str, Any]) -> dict[str, Any]:
    """Where a file lies and when it was modified, beside what is in it."""
    return {**origin, "path": str(path.absolute()), "modified": path.stat().st_mtime_ns}
