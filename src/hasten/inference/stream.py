"""Recommendations for all users in batches, written to a file of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hasten.data.tables import Dataset
from hasten.inference.export import write_tables
from hasten.inference.recommend import Recommendations, recommend

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

USERS_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class Counts:
    """What a person is told of recommendations: numbers of users and rows, how they were made."""

    users: int
    rows: int
    without_history: int
    short: int
    topk: int
    known: str
    ignored: Mapping[str, int]

    @classmethod
    def of(cls, recommendations: Recommendations) -> Counts:
        """Of recommendations."""
        return cls(
            len(recommendations.users),
            len(recommendations),
            recommendations.without_history,
            recommendations.short,
            recommendations.topk,
            recommendations.known,
            recommendations.ignored,
        )

    def plus(self, more: Counts) -> Counts:
        """With those of further users, made with the same options."""
        return replace(
            self,
            users=self.users + more.users,
            rows=self.rows + more.rows,
            without_history=self.without_history + more.without_history,
            short=self.short + more.short,
        )


def write_recommendations(
    loaded: LoadedRun,
    path: Path,
    format: str | None,
    topk: int,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Counts:
    """Write the recommendations for all users as they are computed; the file appears at the end.

    progress: called with how many of how many users are done. options: those of :func:`recommend`.
    """
    totals: list[Counts] = []

    def tables() -> Iterator[pa.Table]:
        for part in _parts(loaded, topk, options):
            counts = Counts.of(part)
            totals.append(totals.pop().plus(counts) if totals else counts)
            yield part.to_table()
            if progress is not None and isinstance(loaded.dataset, Dataset):
                progress(totals[0].users, len(loaded.dataset.users))

    write_tables(tables(), path, format)
    return totals[0]


def _parts(loaded: LoadedRun, topk: int, options: Mapping[str, Any]) -> Iterator[Recommendations]:
    dataset = loaded.dataset
    if not isinstance(dataset, Dataset) or len(dataset.users) <= USERS_AT_A_TIME:
        yield recommend(loaded, topk=topk, **options)
        return
    for start in range(0, len(dataset.users), USERS_AT_A_TIME):
        users = dataset.users.labels.slice(start, USERS_AT_A_TIME).to_pylist()
        yield recommend(loaded, users, topk=topk, **options)
