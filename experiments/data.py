"""Where the data sets of the experiments lie: those of the benchmarks, and events alone."""

from __future__ import annotations

from pathlib import Path

from bench import data

#: events as they come: their folders under the data folder
EVENTS = {
    "baby": "mm_baby_interactions/derived",
    "home": "seq_home_items",
    "amazon-book": "cf_amazon-book_noKG",
}


def plain_file(name: str) -> Path:
    """A path ``hasten train`` reads."""
    return data.data_folder() / EVENTS[name] if name in EVENTS else data.plain_file(name)
