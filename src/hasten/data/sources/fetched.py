"""The options that read a fetched data set."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from hasten.config import DataOptions
from hasten.data.sources.catalogue import Remote
from hasten.data.sources.fetch import cached
from hasten.data.sources.published import RemoteFolder
from hasten.errors import DataError

Options = TypeVar("Options", bound=DataOptions)


def fetched_options(entry: Remote | RemoteFolder, options: Options) -> Options:
    """The options that read the fetched set; what the user chose stays.

    Raises:
        DataError: the set was not fetched yet.
    """
    folder = cached(entry.name, entry.sha256)
    if folder is None:
        raise DataError(
            f"{entry.name} is registered but not in the cache: hasten data fetch {entry.name}"
        )
    if isinstance(entry, RemoteFolder):
        layout = options.format or "sequences"
        return options.model_copy(update={"path": str(folder), "format": layout})
    names = options.names or _inside(folder, entry.names)
    update = {"path": str(folder / entry.file), "names": names}
    if options.format is None:
        update["format"] = entry.format
    return options.model_copy(update=update)


def _inside(folder: Path, name: str | None) -> str | None:
    return None if name is None else str(folder / name)
