"""Options -> a checked, cleaned and split Dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.config import DataOptions
from hasten.data import catalogue
from hasten.data.assemble import assemble
from hasten.data.names import read_names
from hasten.data.places import locate
from hasten.data.readers import read_file
from hasten.data.readers.memory import read_table
from hasten.data.tables import Dataset
from hasten.data.text import file_digest
from hasten.errors import UsageError

_OF_FILES = ("format", "train", "valid", "test", "times", "separator")


def load_dataset(options: DataOptions, seed: int) -> Dataset:
    """The data that the options name: read, checked, cleaned, split.

    options.path: a file, a folder or a registered name; a path that exists comes first.

    Raises:
        DataError: what is wrong, with file, line and text.
    """
    encoding, name = "utf-8", None
    if options.path is not None and not Path(options.path).exists():
        entry = catalogue.find(options.path)
        if isinstance(entry, catalogue.Sample):
            return _sample(entry, options, seed)
        options = catalogue.resolve(entry, options)
        encoding, name = entry.names_encoding, entry.name
    place = locate(options)
    notes = place.notes
    if options.path in catalogue.CATALOGUE and name is None:
        notes = (f"read from the path {options.path}, not the registered set of that name", *notes)
    if place.times is not None:
        options = options.model_copy(update={"times": str(place.times)})
    read = [(*read_file(path, options), part) for path, part in place.parts]
    formats = sorted({form for form, _, _ in read})
    if place.times is not None and formats != ["sequences"]:
        raise UsageError(f"data.times goes with sequences, but the data are {'+'.join(formats)}")
    return assemble(
        name or place.name,
        place.path,
        "+".join(formats),
        [(events, part) for _, events, part in read],
        {} if place.names is None else read_names(place.names, encoding),
        options,
        seed,
        notes=notes,
        files=() if place.names is None else (file_digest(place.names),),
    )


def _sample(entry: catalogue.Sample, options: DataOptions, seed: int) -> Dataset:
    """A built-in sample: always the same data, whatever the seed of the run."""
    _refuse(f"the built-in sample {entry.name}", options, (*_OF_FILES, "names", "columns"))
    made = entry.make()
    events = read_table(made.table, options, entry.name)
    return assemble(
        entry.name, entry.name, "sample", [(events, None)], made.names, options, seed
    )  # fmt: skip


def load_table(table: Any, options: DataOptions, seed: int, name: str = "table") -> Dataset:
    """A table in memory (pandas, polars, pyarrow, dict of arrays): checked, cleaned, split.

    Raises:
        DataError: what is wrong, with row and text.
    """
    _refuse("a table in memory", options, ("path", *_OF_FILES))
    events = read_table(table, options, name)
    path = None if options.names is None else Path(options.names)
    return assemble(
        name, None, "table", [(events, None)],
        {} if path is None else read_names(path), options, seed,
        files=() if path is None else (file_digest(path),),
    )  # fmt: skip


def _refuse(what: str, options: DataOptions, keys: tuple[str, ...]) -> None:
    """Options that say how to read files have no effect on data that are in memory."""
    given = [f"data.{key}" for key in keys if getattr(options, key)]
    if given:
        raise UsageError(f"{', '.join(given)} has no effect on {what}")
