"""The result of joining new data with a run's, and code that graphs and interactions share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.columns.checks import counted
from hasten.data.event_features import EventFeatures
from hasten.data.item_features import ItemFeatures
from hasten.data.tables import AnyDataset, Modality, Vocabulary
from hasten.errors import DataError

#: the origin of a row that is not in the run; rows of the run have their part
NEW = -1
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Joined:
    """The joined data. trained: bool [n], the rows that the run has trained on.

    counts: of new rows and ids; whole: whether the new data held all rows of the run again.
    """

    dataset: AnyDataset
    trained: NDArray[np.bool_]
    counts: dict[str, int]
    whole: bool


def united(old: Vocabulary, new: Vocabulary) -> tuple[Vocabulary, Int64, Int64]:
    """The sorted union of two vocabularies, and where the ids of each are in it."""
    before, after = old.labels, new.labels
    if before.type != after.type:
        before, after = before.cast(pa.string()), after.cast(pa.string())
    all_labels = pa.concat_arrays([before, after])
    labels = pc.unique(all_labels)
    labels = labels.take(pc.array_sort_indices(labels))
    place = np.asarray(pc.index_in(all_labels, value_set=labels), np.int64)
    names = None
    if old.names is not None or new.names is not None:
        known = [
            pa.nulls(len(each), pa.string()) if each.names is None else each.names
            for each in (old, new)
        ]
        joined_names: list[str | None] = [None] * len(labels)
        for where, name in zip(place.tolist(), pa.concat_arrays(known).to_pylist(), strict=True):
            joined_names[where] = joined_names[where] if name is None else name
        names = pa.array(joined_names, pa.string())
    return Vocabulary(labels, names), place[: len(old)], place[len(old) :]


def repeated(old: list[Int64], new: list[Int64]) -> tuple[NDArray[np.bool_], bool]:
    """Which new rows repeat an old row, and whether all old rows are repeated.

    old, new: the columns of the rows. Of a row that occurs m times in the old data, the first m
    occurrences in the new data are repetitions.
    """
    size = len(old[0])
    code = np.zeros(size + len(new[0]), np.int64)
    for before, after in zip(old, new, strict=True):
        _, value = np.unique(np.concatenate([before, after]), return_inverse=True)
        value = value.reshape(-1)
        _, code = np.unique(code * (int(value.max(initial=0)) + 1) + value, return_inverse=True)
        code = code.reshape(-1)
    old_counts = np.bincount(code[:size], minlength=int(code.max(initial=0)) + 1)
    new_codes = code[size:]
    order = np.argsort(new_codes, kind="stable")
    starts = np.searchsorted(new_codes[order], new_codes[order])
    occurrence = np.empty(len(new_codes), np.int64)
    occurrence[order] = np.arange(len(new_codes)) - starts
    new_counts = np.bincount(new_codes, minlength=len(old_counts))
    return occurrence < old_counts[new_codes], bool((new_counts >= old_counts).all())


def joined_features(
    old: Modality, new: Modality | None, places: tuple[Int64, Int64], labels: pa.Array, what: str
) -> Modality:
    """The features of all ids. places: where the rows of each are; the run's come first.

    Raises:
        DataError: a new id has no features, or they have another width.
    """
    values = np.zeros((len(labels), old.width), old.values.dtype)
    filled = np.zeros(len(labels), bool)
    if new is not None:
        if new.width != old.width:
            raise DataError(
                f"the {old.name} features have the width {new.width} in the new data and "
                f"{old.width} in the run"
            )
        values[places[1]], filled[places[1]] = new.values, True
    values[places[0]], filled[places[0]] = old.values, True
    if not filled.all():
        missing = np.flatnonzero(~filled)
        shown = ", ".join(repr(labels[i].as_py()) for i in missing[:_SHOWN].tolist())
        raise DataError(
            f"{counted(len(missing), f'new {what}')} without {old.name} features: {shown}"
            f"{', ...' if len(missing) > _SHOWN else ''}; put the features beside the new data, or "
            f"name them: --set data.features.{old.name}=FILE"
        )
    return Modality.of(old.name, values)


def joined_item_features(
    old: ItemFeatures | None, new: ItemFeatures | None, places: tuple[Int64, Int64]
) -> ItemFeatures | None:
    """The features of all items, numbers standardized as in the run. places: of the items of both.

    Items of which the run has features keep them. New items without any have none.

    Raises:
        DataError: the tables have other columns.
    """
    if old is None:
        return None
    item = places[0][old.item]
    if new is None:
        order = np.argsort(item, kind="stable")
        return replace(old, item=item[order], value=old.value[order], weight=old.weight[order])
    if dict(new.columns) != dict(old.columns):
        columns = ["; ".join(f"{n}: {k}" for n, k in each.columns) for each in (new, old)]
        raise DataError(
            f"the item features of the new data are {columns[0]}, those of the run {columns[1]}"
        )
    values, first, second = united(Vocabulary(old.values), Vocabulary(new.values))
    label = np.array(new.values.to_pylist(), object)[new.value]
    weight = new.weight.astype(np.float64)
    for name, (mean, deviation) in new.scale.items():
        of_run, at = old.scale[name], label == name
        weight[at] = (weight[at] * deviation + mean - of_run[0]) / of_run[1]
    added = places[1][new.item]
    fresh = ~np.isin(added, item)
    item = np.concatenate([item, added[fresh]])
    value = np.concatenate([first[old.value], second[new.value][fresh]])
    order = np.argsort(item, kind="stable")
    weights = np.concatenate([old.weight, weight[fresh].astype(np.float32)])
    return replace(
        old, values=values.labels, item=item[order], value=value[order], weight=weights[order]
    )


def joined_event_features(
    old: EventFeatures | None,
    new: EventFeatures | None,
    fresh: NDArray[np.bool_],
    row: Int64 | None,
) -> EventFeatures | None:
    """The features of joined events. row: where each is among those of the run and the fresh ones.

    Values that the run does not know come after its own. Numbers stay standardized as in the run.
    """
    if old is None or new is None or row is None:
        return None
    columns, cells = [], []
    for mine, other, before, after in zip(
        old.columns, new.columns, old.cells, new.cells, strict=True
    ):
        if mine.values is None or other.values is None:
            columns.append(mine)
            cells.append(np.concatenate([before, after[fresh]]))
            continue
        values = tuple(dict.fromkeys((*mine.values, *other.values)))
        number = {value: code for code, value in enumerate(values)}
        place = np.array([*(number[value] for value in other.values), -1], np.int32)
        columns.append(replace(mine, values=values))
        cells.append(np.concatenate([before, place[after[fresh]]]))
    return EventFeatures(tuple(columns), tuple(cells)).take(row)


def source_counts(dataset: AnyDataset, joined: AnyDataset) -> dict[str, Any]:
    """How many ids of each kind are new."""
    kinds = ("users", "items", "entities", "relations")
    sizes = {kind: (getattr(dataset, kind, None), getattr(joined, kind, None)) for kind in kinds}
    return {
        f"new_{kind}": len(after) - len(before)
        for kind, (before, after) in sizes.items()
        if before is not None and after is not None
    }
