"""First pass of ``data prepare``: read files in blocks, encode the labels, append the rows.

What was read is appended to scratch files, one a column, in the order of the files: the numbers of
users and items (int32) and times as they were read (int64 or float64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.config import InteractionOptions
from hasten.data.columns.labels import Labels
from hasten.data.columns.times import TimeColumn, joined
from hasten.data.readers import in_blocks
from hasten.data.readers.ahead import read_ahead
from hasten.data.readers.table import Blocks, Table
from hasten.errors import DataError

#: times of a group that are kept to judge whether the unit is right
_SAMPLE = 1000
#: what is reported: (rows read, all rows)
Report = Callable[[int, int], None]


@dataclass(eq=False)
class Collected:
    """What the first pass found.

    groups: (rows, type of the times) in the order of the scratch files; read: rows of the files;
    times: samples with the smallest and the largest of every group; highest: the highest rating.
    """

    folder: Path
    users: Labels
    items: Labels
    groups: list[tuple[int, str]] = field(default_factory=list)
    times: list[TimeColumn] = field(default_factory=list)
    read: int = 0
    highest: float = -np.inf

    def __len__(self) -> int:
        return sum(rows for rows, _ in self.groups)

    @property
    def time_type(self) -> str | None:
        """int64, or float64 if any time is a fraction; None: without times."""
        kinds = {kind for _, kind in self.groups}
        return None if "" in kinds or not kinds else min(kinds)  # float64 before int64


def collect(
    files: Iterable[Blocks], folder: Path, options: InteractionOptions, report: Report
) -> Collected:
    """Read all files. Raises DataError with file, line and text."""
    files = list(files)
    done, total = 0, sum(blocks.total for blocks in files)
    limit = in_blocks.label_limit(total)
    collected = Collected(folder, Labels(limit), Labels(limit))
    tables = (table for blocks in files for table in blocks.tables)
    with ThreadPoolExecutor(2) as pool:
        for group in in_blocks.groups(read_ahead(tables), in_blocks.GROUP):
            _append(group, collected, options, pool)
            done += sum(map(in_blocks.size, group))
            report(done, total)
    report(total, total)
    collected.read = done
    if options.min_rating is not None and not len(collected):
        raise DataError(
            f"data.min_rating={options.min_rating:g} leaves no event; the highest rating is "
            f"{collected.highest:g}"
        )
    return collected


def _append(
    group: list[Table], collected: Collected, options: InteractionOptions, pool: Executor
) -> None:
    users, items = pool.map(
        lambda labels, role: labels.codes([table.plain_ids(role) for table in group]),
        (collected.users, collected.items),
        ("user", "item"),
    )
    times = [time for table in group if (time := in_blocks.times_of(table)) is not None]
    columns: list[NDArray[Any]] = [users, items]
    columns += [joined([time.values for time in times])] if times else []
    if options.min_rating is not None:
        rated = [rating for table in group if (rating := table.ratings()) is not None]
        if not rated:
            raise DataError(f"data.min_rating={options.min_rating:g}, but the data have no ratings")
        ratings = joined(rated)
        collected.highest = max(collected.highest, float(ratings.max(initial=-np.inf)))
        columns = [column[ratings >= options.min_rating] for column in columns]
    list(pool.map(Labels.count, (collected.users, collected.items), columns[:2]))
    for name, column in zip(("user", "item", "time"), columns, strict=False):
        with (collected.folder / name).open("ab") as file:
            column.tofile(file)
    collected.groups.append((len(columns[0]), str(columns[2].dtype) if times else ""))
    if times and len(columns[2]):
        values = columns[2]
        sample = values[:: max(1, len(values) // _SAMPLE)]
        ends = np.array([values.min(), values.max()])
        collected.times.append(TimeColumn(np.concatenate([sample, ends]), times[0].unit))
