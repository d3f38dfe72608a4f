"""Load interactions: locate the files, read them, assemble a checked and split Dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.config import InteractionOptions
from hasten.data.columns.text import file_digest
from hasten.data.interactions.assemble import assemble
from hasten.data.readers import recognize
from hasten.data.readers.arrow import open_memory, tables_by_part
from hasten.data.readers.interface import Read
from hasten.data.readers.names import read_names
from hasten.data.sources import catalog
from hasten.data.sources.fetch import fetched_options
from hasten.data.sources.files import Files, locate, refuse_options
from hasten.data.tables import Dataset
from hasten.errors import DataError, UsageError

_FILE_OPTIONS = ("format", "train", "valid", "test", "times", "separator")


def load_dataset(
    options: InteractionOptions, seed: int, table: Any = None, needs_order: bool = True
) -> Dataset:
    """Load the interactions that the options name, or a table in memory.

    options.path: a file, a folder, a pattern or a registered name; an existing path takes
    precedence. table: one, or one a part (:func:`.tables_by_part`). needs_order: split by the
    order of the file where there are no times (``data.split=auto``).

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    read = _read(options) if table is None else _read_table(table, options)
    return assemble(read, options, seed, needs_order)


def _read(options: InteractionOptions) -> Read:
    """Read the sample, the fetched set or the files that the options name."""
    entry = catalog.registered(options.path)
    if entry is None:
        return _read_files(locate(options), options)
    if entry.kind in ("triples", "typed"):
        raise DataError(f"{options.path} holds triples, not interactions of users")
    if isinstance(entry, catalog.Sample):
        return _read_sample(entry, options)
    options = fetched_options(entry, options)
    read = _read_files(locate(options), options, entry.names_encoding)
    read.name = entry.name
    return read


def _read_files(files: Files, options: InteractionOptions, encoding: str = "utf-8") -> Read:
    """Read the located files; encoding: that of the file of names."""
    notes = files.notes
    if options.path in catalog.CATALOG:
        notes = (f"read from the path {options.path}, not the registered set of that name", *notes)
    if files.times is not None:
        options = options.model_copy(update={"times": str(files.times)})
    formats, events = set(), []
    for path, part in files.parts:
        reader, beginning, claim = recognize(path, options)
        formats.add(reader.name)
        events.append((reader.read(beginning, claim), part))
    if files.times is not None and formats != {"sequences"}:
        raise UsageError(f"data.times goes with sequences, not with {'+'.join(sorted(formats))}")
    read = Read(files.name, files.path, "+".join(sorted(formats)), events, notes=notes)
    if files.names is not None:
        read.names = read_names(files.names, encoding)
        read.files = (file_digest(files.names),)
    return read


def _read_sample(entry: catalog.Sample, options: InteractionOptions) -> Read:
    """A built-in sample: always the same data, whatever the seed of the run."""
    refuse_options(
        f"the built-in sample {entry.name}", options, (*_FILE_OPTIONS, "names", "columns")
    )
    made = entry.make()
    events = open_memory(made.table, options, entry.name).parsed()
    return Read(entry.name, entry.name, "sample", [(events, None)], made.names)


def _read_table(table: Any, options: InteractionOptions) -> Read:
    refuse_options("a table in memory", options, ("path", *_FILE_OPTIONS))
    found = [(open_memory(t, options, name).parsed(), p) for name, t, p in tables_by_part(table)]
    read = Read("table", None, "table", found)
    if options.names is not None:
        path = Path(options.names)
        read.names, read.files = read_names(path), (file_digest(path),)
    return read
