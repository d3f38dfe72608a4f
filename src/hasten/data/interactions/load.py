"""Options -> a checked, cleaned and split Dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.config import InteractionOptions
from hasten.data.columns.text import file_digest
from hasten.data.interactions.assemble import Otherwise, Read, assemble
from hasten.data.readers import read_file
from hasten.data.readers.memory import read_table
from hasten.data.readers.names import read_names
from hasten.data.sources import catalogue
from hasten.data.sources.fetched import fetched_options
from hasten.data.sources.files import locate
from hasten.data.tables import Dataset
from hasten.errors import DataError, UsageError

_OF_FILES = ("format", "train", "valid", "test", "times", "separator")


def load_dataset(
    options: InteractionOptions, seed: int, otherwise: Otherwise = "leave-last-two-out"
) -> Dataset:
    """The data that the options name: read, checked, cleaned, split.

    options.path: a file, a folder or a registered name; a path that exists comes first.
    otherwise: the split of data that name no parts, where the options choose none.

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    encoding, name = "utf-8", None
    if options.path is not None and not Path(options.path).exists():
        entry = catalogue.find(options.path)
        if entry.kind == "triples":
            raise DataError(f"{options.path} holds triples, not events of users")
        if isinstance(entry, catalogue.Sample):
            return _sample(entry, options, seed, otherwise)
        options = fetched_options(entry, options)
        encoding, name = entry.names_encoding, entry.name
    place = locate(options)
    notes = place.notes
    if options.path in catalogue.CATALOGUE and name is None:
        notes = (f"read from the path {options.path}, not the registered set of that name", *notes)
    if place.times is not None:
        options = options.model_copy(update={"times": str(place.times)})
    formats, events = set(), []
    for path, part in place.parts:
        form, found = read_file(path, options)
        formats.add(form)
        events.append((found, part))
    if place.times is not None and formats != {"sequences"}:
        raise UsageError(f"data.times goes with sequences, not with {'+'.join(sorted(formats))}")
    read = Read(name or place.name, place.path, "+".join(sorted(formats)), events, notes=notes)
    del events, found  # what is read is let go of when it is joined
    if place.names is not None:
        read.names = read_names(place.names, encoding)
        read.files = (file_digest(place.names),)
    return assemble(read, options, seed, otherwise)


def _sample(
    entry: catalogue.Sample, options: InteractionOptions, seed: int, otherwise: Otherwise
) -> Dataset:
    """A built-in sample: always the same data, whatever the seed of the run."""
    _refuse(f"the built-in sample {entry.name}", options, (*_OF_FILES, "names", "columns"))
    made = entry.make()
    events = read_table(made.table, options, entry.name)
    read = Read(entry.name, entry.name, "sample", [(events, None)], made.names)
    return assemble(read, options, seed, otherwise)


def load_table(
    table: Any,
    options: InteractionOptions,
    seed: int,
    name: str = "table",
    otherwise: Otherwise = "leave-last-two-out",
) -> Dataset:
    """A table in memory (pandas, polars, pyarrow, dict of arrays): checked, cleaned, split.

    Raises:
        DataError: what is wrong, with row and text.
    """
    _refuse("a table in memory", options, ("path", *_OF_FILES))
    read = Read(name, None, "table", [(read_table(table, options, name), None)])
    if options.names is not None:
        path = Path(options.names)
        read.names, read.files = read_names(path), (file_digest(path),)
    return assemble(read, options, seed, otherwise)


def _refuse(what: str, options: InteractionOptions, keys: tuple[str, ...]) -> None:
    """Options that say how to read files have no effect on data that are in memory."""
    given = [f"data.{key}" for key in keys if getattr(options, key)]
    if given:
        raise UsageError(f"{', '.join(given)} has no effect on {what}")
