"""Features of items from a table: a sparse matrix of items and of their categories and numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64

Float32 = NDArray[np.float32]
#: category: one value an item; categories: several; number: standardized
Kind = Literal["category", "categories", "number"]


@dataclass(frozen=True, eq=False)
class ItemFeatures:
    """A sparse matrix [N, K] of items and values, in coordinates sorted by item.

    values: string [K], ``column=value`` of a category and the column's name of a number. item,
    value: int64 [m]; weight: float32 [m], 1 for a category, 1/n for each of n categories, and the
    standardized number. columns: (name, kind). scale: mean and standard deviation of each column
    of numbers, over the items with training interactions. Missing cells have no entry.
    """

    values: pa.Array
    item: Int64
    value: Int64
    weight: Float32
    columns: tuple[tuple[str, Kind], ...]
    scale: Mapping[str, tuple[float, float]]

    def padded(self, items: int) -> tuple[Int64, Float32]:
        """Value and weight of every entry of every item, [N, C]; weight 0 where it has fewer."""
        counts = np.bincount(self.item, minlength=items)
        place = np.arange(len(self.item)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (items, max(1, int(counts.max(initial=0))))
        codes, weights = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        codes[self.item, place], weights[self.item, place] = self.value, self.weight
        return codes, weights

    def digest(self) -> str:
        """sha256 over the content."""
        digest = hashlib.sha256(json.dumps([self.values.to_pylist(), self.about()]).encode())
        for column, kind in ((self.item, "<i8"), (self.value, "<i8"), (self.weight, "<f4")):
            digest.update(np.ascontiguousarray(column, kind).data)
        return digest.hexdigest()

    def about(self) -> dict[str, Any]:
        """What the tables of :meth:`to_tables` do not hold, for JSON."""
        return {"columns": [list(c) for c in self.columns], "scale": dict(self.scale)}

    def to_tables(self) -> dict[str, pa.Table]:
        """The tables that a run folder stores, by file name."""
        entries = {"item": self.item, "value": self.value, "weight": self.weight}
        return dict(zip(FILES, (pa.table({"value": self.values}), pa.table(entries)), strict=True))

    @classmethod
    def from_tables(cls, about: Mapping[str, Any], tables: Sequence[pa.Table]) -> ItemFeatures:
        """From what :meth:`about` and :meth:`to_tables` gave."""
        values, entries = tables
        item, value, weight = (np.array(entries.column(n)) for n in ("item", "value", "weight"))
        columns = tuple((name, kind) for name, kind in about["columns"])
        scale = {name: (mean, deviation) for name, (mean, deviation) in about["scale"].items()}
        labels = values.column("value").combine_chunks()
        return cls(labels, item, value, weight, columns, scale)


#: the names of the tables
FILES = ("item_values.parquet", "item_features.parquet")
