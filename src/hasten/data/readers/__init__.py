"""Readers of interactions, one file per format, and format detection.

To add a format, write a class with the methods of :class:`~.interface.Reader` in a file of its own
and add it to ``_ALL``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hasten.config import InteractionOptions
from hasten.data.columns.text import Sample, sample
from hasten.data.readers.columnar import Parquet
from hasten.data.readers.delimited import Delimited
from hasten.data.readers.interface import Claim, Events, Reader
from hasten.data.readers.lines import Lines
from hasten.data.readers.recbole import RecBole
from hasten.data.readers.sequences import Sequences
from hasten.errors import ConfigurationError, DataError, did_you_mean

_ALL: tuple[Reader, ...] = (Delimited(), Parquet(), Lines(), Sequences(), RecBole())
READERS: dict[str, Reader] = {reader.name: reader for reader in _ALL}

__all__ = ["READERS", "Claim", "Events", "Reader", "read_file", "recognize"]


def recognize(path: Path, options: InteractionOptions) -> tuple[Reader, Sample, Claim]:
    """Find the reader for a file.

    Raises:
        DataError: no reader claims it, or more than one does; with the reason of each format.
        ConfigurationError: ``data.format`` is not a known format.
    """
    beginning = sample(path)
    if options.format is not None:
        reader = READERS.get(options.format)
        if reader is None:
            raise ConfigurationError(
                f"unknown format {options.format!r}{did_you_mean(options.format, READERS)} "
                f"(known: {', '.join(READERS)})"
            )
        claim = reader.claim(beginning, options, named=True)
        if isinstance(claim, str):
            raise DataError(f"{path} cannot be read as {reader.name}: {claim}")
        return reader, beginning, claim
    claims = {r.name: r.claim(beginning, options, named=False) for r in READERS.values()}
    taken = {name: claim for name, claim in claims.items() if isinstance(claim, Claim)}
    if len(taken) == 1:
        name, claim = next(iter(taken.items()))
        return READERS[name], beginning, claim
    if taken:
        said = [f"  {name}: {claim.reason}" for name, claim in taken.items()]
        head = f"{path}: the format is ambiguous; choose with --format:"
    else:
        said = [f"  {name}: {reason}" for name, reason in claims.items()]
        head = f"{path}: no format is recognized; choose with --format. What each says:"
    raise DataError("\n".join([head, *said]))


def read_file(path: Path, options: InteractionOptions) -> tuple[str, Events]:
    """The name of the file's format, and its interactions."""
    reader, beginning, claim = recognize(path, options)
    events = reader.read(beginning, claim, options)
    return reader.name, replace(events, notes=(*claim.notes, *events.notes))
