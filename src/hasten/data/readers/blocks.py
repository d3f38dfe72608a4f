"""Read a file in blocks of rows, whatever its format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hasten.config import InteractionOptions
from hasten.data.columns.text import Sample
from hasten.data.readers import arrow, recognize, separated
from hasten.data.readers.interface import Claim
from hasten.data.readers.table import Blocks
from hasten.errors import DataError

_OPEN: dict[str, Callable[[Sample, Claim], Blocks]] = {
    "parquet": arrow.blocks,
    **dict.fromkeys(("delimited", "lines", "recbole"), separated.blocks),
}


def open_blocks(path: Path, options: InteractionOptions) -> tuple[Blocks, str]:
    """The file in blocks, and its format.

    Raises:
        DataError: no format is recognized, or one that is not made of rows of events.
    """
    reader, beginning, claim = recognize(path, options)
    if reader.name not in _OPEN:
        raise DataError(
            f"{path}: {reader.name} cannot be read in blocks: write the events as a table "
            "(CSV, Parquet), one a row, or train from the file itself"
        )
    return _OPEN[reader.name](beginning, claim), reader.name
