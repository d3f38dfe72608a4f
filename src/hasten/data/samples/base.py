"""What every built-in sample consists of, and how it is written to a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class SampleSet:
    """A made data set. table: user_id, item_id, timestamp; names: item_id text -> name.

    facts: head, relation and tail of what is known of the items, or None. features: modality ->
    float32 [N, d], row i for the item that is called i.
    """

    table: pa.Table
    names: dict[str, str]
    facts: pa.Table | None = None
    features: dict[str, NDArray[np.float32]] = field(default_factory=dict)


def write_csv(table: pa.Table, path: Path) -> None:
    """A table whose cells need no quotes, with a header; the file appears whole or not at all."""
    aside = path.with_name(f".{path.name}.new")
    try:
        with aside.open("wb") as file:
            file.write((",".join(table.column_names) + "\n").encode())
            options = arrow_csv.WriteOptions(include_header=False, quoting_style="none")
            arrow_csv.write_csv(table, file, options)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
