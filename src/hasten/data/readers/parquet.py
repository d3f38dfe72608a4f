"""Parquet files with a user and an item column, and optionally a rating and a time."""

from __future__ import annotations

from hasten.config import InteractionOptions
from hasten.data.columns.text import Sample
from hasten.data.readers.columnar import MAGIC, claim_parquet, open_parquet
from hasten.data.readers.interface import Claim, Events


class Parquet:
    """Parquet."""

    name = "parquet"
    summary = "Parquet with the columns user_id, item_id[, rating][, timestamp]"

    def claim(self, sample: Sample, options: InteractionOptions, named: bool) -> Claim | str:
        if not sample.magic.startswith(MAGIC):
            return "it does not start as Parquet does"
        claim = claim_parquet(sample.path, options.columns)
        if isinstance(claim, Claim) and options.separator is not None:
            return "data.separator is given, but Parquet has none"
        return claim

    def read(self, sample: Sample, claim: Claim, options: InteractionOptions) -> Events:
        return open_parquet(sample.path, claim).events()
