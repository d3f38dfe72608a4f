"""Parquet files with a user and an item column, and a rating and a time where there are."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from hasten.config import InteractionOptions
from hasten.data.columns.text import Sample, file_digest
from hasten.data.readers.columnar import read_arrow
from hasten.data.readers.columns import find_roles
from hasten.data.readers.interface import Claim, Events
from hasten.errors import DataError


class Parquet:
    """Parquet."""

    name = "parquet"
    summary = "Parquet with the columns user_id, item_id[, rating][, timestamp]"

    def claim(self, sample: Sample, options: InteractionOptions, named: bool) -> Claim | str:
        if not sample.magic.startswith(b"PAR1"):
            return "it does not start as Parquet does"
        try:
            names = pq.read_schema(sample.path).names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{sample.path}: damaged Parquet file ({error})") from error
        roles = find_roles(str(sample.path), names, options.columns)
        if isinstance(roles, str):
            return roles
        if options.separator is not None:
            return "data.separator is given, but Parquet has none"
        columns = {role: names[i] for role, i in roles.items()}
        unused = [name for name in names if name not in columns.values()]
        return Claim(
            reason="Parquet",
            details={"columns": columns, "header": names},
            notes=(f"columns not used: {', '.join(unused)}",) if unused else (),
            layout=columns,
        )

    def read(self, sample: Sample, claim: Claim, options: InteractionOptions) -> Events:
        columns: dict[str, str] = claim.layout
        try:
            table = pq.read_table(sample.path, columns=list(columns.values()), partitioning=None)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{sample.path}: damaged Parquet file ({error})") from error
        roles = {role: table.column_names.index(name) for role, name in columns.items()}
        source = str(sample.path)
        return read_arrow(source, table, roles, (file_digest(sample.path),))
