"""Readers of interactions, triples and typed edges, one file per format, and format detection.

To add a format, write a :class:`~.interface.Reader` in a file of its own and add it to ``READERS``.
"""

from __future__ import annotations

from pathlib import Path

from hasten.config import InteractionOptions
from hasten.data.columns.text import Sample, sample
from hasten.data.readers.arrow import PARQUET
from hasten.data.readers.delimited import DELIMITED
from hasten.data.readers.interface import Claim, Columns, Reader
from hasten.data.readers.lines import LINES
from hasten.data.readers.recbole import RECBOLE
from hasten.data.readers.sequences import SEQUENCES
from hasten.errors import ConfigurationError, DataError, did_you_mean

READERS = {reader.name: reader for reader in (DELIMITED, PARQUET, LINES, SEQUENCES, RECBOLE)}

__all__ = ["READERS", "Claim", "Columns", "Reader", "recognize"]


def recognize(path: Path, options: InteractionOptions) -> tuple[Reader, Sample, Claim]:
    """Find the reader for a file.

    Raises:
        DataError: no reader claims it, or more than one does; with the reason of each format.
        ConfigurationError: ``data.format`` is not a known format.
    """
    beginning, form = sample(path), options.format
    if form is not None and form not in READERS:
        raise ConfigurationError(
            f"unknown format {form!r}{did_you_mean(form, READERS)} (known: {', '.join(READERS)})"
        )
    claims = {
        reader.name: "not text"
        if not beginning.lines and reader is not PARQUET
        else reader.claim(beginning, options, form is not None)
        for reader in (READERS.values() if form is None else [READERS[form]])
    }
    taken = {name: claim for name, claim in claims.items() if isinstance(claim, Claim)}
    if len(taken) == 1:
        name, claim = next(iter(taken.items()))
        return READERS[name], beginning, claim
    if form is not None:
        raise DataError(f"{path} cannot be read as {form}: {claims[form]}")
    if taken:
        reasons = [f"  {name}: {claim.reason}" for name, claim in taken.items()]
        head = f"{path}: the format is ambiguous; choose with --format:"
    else:
        reasons = [f"  {name}: {reason}" for name, reason in claims.items()]
        head = f"{path}: no format is recognized; choose with --format. What each says:"
    raise DataError("\n".join([head, *reasons]))
