"""Which rows of a weight belong to which ids (users, items, ...), to transfer them to other data.

A model declares in :meth:`Model.rows_of` which dimension of a weight is numbered by users, items,
entities, relations or node types. With it the weights of a run fit data with more of them: rows of
known ids are copied by label, and new rows begin by :func:`first_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import TRAIN, AnyDataset, Dataset, KnowledgeGraph, Triples, Vocabulary
from hasten.errors import DataError

#: plain_nodes: nodes of the types that have no node features; item_values, event_values: of the
#: features of items and of events
Kind = Literal[
    "users", "items", "entities", "relations", "node_types", "plain_nodes", "item_values",
    "event_values",
]  # fmt: skip
#: similar items by content, whose rows a new item without interactions begins with
_SIMILAR = 10


@dataclass(frozen=True)
class Rows:
    """What the rows of a weight stand for, one block after the other.

    blocks: a kind of ids, or a number of rows that are the same in all data. dim: the dimension.
    """

    blocks: tuple[Kind | int, ...]
    dim: int = 0

    @classmethod
    def of(cls, *blocks: Kind | int, dim: int = 0) -> Rows:
        return cls(blocks, dim)


@dataclass(frozen=True, eq=False)
class KnownRows:
    """The vocabularies of two datasets, matched by label.

    old_row: for each kind of ids, the row in the old data of every id of the new data, -1 for a new
    id: int64. old_count: the numbers of ids of the old data.
    """

    old_row: dict[Kind, Int64]
    old_count: dict[Kind, int]

    @classmethod
    def of(cls, old: AnyDataset, new: AnyDataset) -> KnownRows:
        """Raises DataError if one of them is a graph and the other is not."""
        if isinstance(old, KnowledgeGraph) != isinstance(new, KnowledgeGraph):
            raise DataError("interactions and triples have no vocabulary in common")
        before, after = _labels(old), _labels(new)
        rows = {kind: _matched(before[kind], after[kind]) for kind in after if kind in before}
        return cls(rows, {kind: len(labels) for kind, labels in before.items()})

    @property
    def same(self) -> bool:
        """Whether every id has the same row in both."""
        return all(
            len(rows) == self.old_count[kind] and np.array_equal(rows, np.arange(len(rows)))
            for kind, rows in self.old_row.items()
        )

    def new(self, kind: Kind) -> int:
        """The number of new ids."""
        return int((self.old_row[kind] < 0).sum())

    def sources(self, rows: Rows) -> Int64:
        """The old row of each new row of a weight, -1 for the row of a new id."""
        blocks, start = [], 0
        for block in rows.blocks:
            if isinstance(block, int):
                blocks.append(np.arange(start, start + block))
                start += block
            else:
                old = self.old_row[block]
                blocks.append(np.where(old < 0, -1, old + start))
                start += self.old_count[block]
        return np.concatenate(blocks)


def _labels(dataset: AnyDataset) -> dict[Kind, pa.Array]:
    """The labels of each kind of ids."""
    if isinstance(dataset, Dataset):
        labels: dict[Kind, pa.Array] = {
            "users": dataset.users.labels,
            "items": dataset.items.labels,
        }
        if dataset.facts is not None:
            labels["entities"] = dataset.facts.entities.labels
            labels["relations"] = dataset.facts.relations.labels
        if dataset.item_features is not None:
            labels["item_values"] = dataset.item_features.values
        if dataset.event_features is not None:
            labels["event_values"] = dataset.event_features.labels
        return labels
    types = NodeTypes.of(dataset)
    featured = [number for number, _ in dataset.features]
    plain = np.flatnonzero(~np.isin(types.code, featured))
    entities = dataset.entities.labels
    return {
        "entities": entities,
        "relations": dataset.relations.labels,
        "node_types": pa.array(types.names, pa.string()),
        "plain_nodes": entities.take(pa.array(plain)),
    }


def _matched(old: pa.Array, new: pa.Array) -> Int64:
    if old.type != new.type:
        old, new = old.cast(pa.string()), new.cast(pa.string())
    return Vocabulary(old).index(new)


def carried(old: Tensor, new: Tensor, rows: Rows, known: KnownRows) -> Tensor:
    """``new`` with the rows of known ids replaced by those of ``old``."""
    source = torch.from_numpy(known.sources(rows))
    known_rows = torch.nonzero(source >= 0)[:, 0]
    taken = old.index_select(rows.dim, source[known_rows]).to(new)
    return new.detach().clone().index_copy_(rows.dim, known_rows, taken)


def first_rows(
    weight: Tensor, initial: Tensor, rows: Rows, known: KnownRows, dataset: AnyDataset
) -> Tensor:
    """``weight`` with the rows of new users, items and entities moved to where similar ones are.

    initial: the initial weights of a new model, whose differences from their mean are the noise. A
    new row is its noise plus the mean over what it shares in training with known ids:
    a new item has the mean over its users, each the mean of their known items; a new user the same
    over items; a new entity over the (relation, entity) of its triples. Without any, an item has
    the mean of the items with the most similar content, and others that of all known rows.
    """
    weight, start = weight.clone(), 0
    for block in rows.blocks:
        stop = start + (block if isinstance(block, int) else len(known.old_row[block]))
        if not isinstance(block, int) and rows.dim == 0:
            is_known = torch.from_numpy(known.old_row[block] >= 0)
            if is_known.any() and not is_known.all():
                part, first = weight[start:stop], initial[start:stop]
                noise = first[~is_known] - first.mean(0)
                part[~is_known] = noise + _means(part, is_known, block, dataset)[~is_known]
        start = stop
    return weight


def _means(values: Tensor, known: Tensor, kind: Kind, dataset: AnyDataset) -> Tensor:
    """The mean of similar known rows, for each row; only those of new ids are of use."""
    mean = values[known].mean(0).expand_as(values).clone()
    if kind == "items" and isinstance(dataset, Dataset) and dataset.modalities:
        _set_by_content(mean, values, known, dataset)
    row, group = _groups(kind, dataset)
    if len(row):
        group_means, is_found = _means_by_group(values, known, row, group)
        mean[is_found] = group_means[is_found]
    return mean


def _groups(kind: Kind, dataset: AnyDataset) -> tuple[Tensor, Tensor]:
    """What ids of a kind occur with in training: rows and numbers of what they share."""
    none = np.empty(0, np.int64)
    if isinstance(dataset, Dataset):
        trained = dataset.part == TRAIN
        user, item = dataset.interactions.user[trained], dataset.interactions.item[trained]
        pairs = {"users": (user, item), "items": (item, user), "entities": (item, user)}
        row, group = pairs.get(kind, (none, none))
        if kind == "entities" and dataset.facts is not None:
            ends, shared = _contexts(dataset.facts.triples)
            row = np.concatenate([row, ends])
            group = np.concatenate([group, shared + len(dataset.users)])
    elif kind in ("entities", "plain_nodes"):
        row, group = _contexts(dataset.of(TRAIN))
        if kind == "plain_nodes":
            featured = [number for number, _ in dataset.features]
            plain = ~np.isin(NodeTypes.of(dataset).code, featured)
            is_plain = plain[row]
            row, group = (np.cumsum(plain) - 1)[row[is_plain]], group[is_plain]
    else:
        row = group = none
    return torch.from_numpy(row), torch.from_numpy(group)


def _contexts(triples: Triples) -> tuple[Int64, Int64]:
    """The entity at each end of each triple, and the number of its (relation, other end)."""
    row = np.concatenate([triples.head, triples.tail])
    other = np.concatenate([triples.tail, triples.head])
    relation = np.concatenate([2 * triples.relation, 2 * triples.relation + 1])
    key = other * (int(relation.max(initial=0)) + 1) + relation
    return row, np.unique(key, return_inverse=True)[1].reshape(-1)


def _means_by_group(
    values: Tensor, known: Tensor, row: Tensor, group: Tensor
) -> tuple[Tensor, Tensor]:
    """For each row, the mean over its groups of the mean of their known rows; where there is one.

    row, group: int64 [n], the row i is in the group j.
    """
    count = int(group.max()) + 1
    has_new_rows = torch.zeros(count, dtype=torch.bool)
    has_new_rows[group[~known[row]]] = True  # the groups of new rows
    inside = has_new_rows[group]
    row, group = row[inside], group[inside]
    of_known = known[row]
    of_groups, filled = _mean_at(values[row[of_known]], group[of_known], count)
    usable = filled[group]
    return _mean_at(of_groups[group[usable]], row[usable], len(values))


def _mean_at(values: Tensor, index: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The mean of the values with each index, [count, ...]; whether there are any, [count]."""
    total = values.new_zeros((count, *values.shape[1:])).index_add_(0, index, values)
    number = torch.bincount(index, minlength=count)
    shape = (-1, *[1] * (values.dim() - 1))
    return total / number.clamp(min=1).view(shape).to(values.dtype), number > 0


def _set_by_content(mean: Tensor, values: Tensor, known: Tensor, dataset: Dataset) -> None:
    """Set the rows of new items to the mean of the known items with the most similar features."""
    content = torch.cat(
        [
            torch.nn.functional.normalize(torch.from_numpy(each.values).float(), dim=1)
            for each in dataset.modalities
        ],
        dim=1,
    )
    old = torch.nonzero(known)[:, 0]
    for number in torch.split(torch.nonzero(~known)[:, 0], 1024):
        near = (content[number] @ content[old].T).topk(min(_SIMILAR, len(old)), dim=1).indices
        mean[number] = values[old[near]].mean(1)


def grown_weights(
    old: Mapping[str, Tensor],
    new: Mapping[str, Tensor],
    rows: Mapping[str, Rows],
    known: KnownRows,
    dataset: AnyDataset,
) -> dict[str, Tensor]:
    """The weights of a model of the new data, from those of the old data, by name.

    new: the initial weights of the new model; rows: :meth:`Model.rows_of`. Raises DataError for a
    weight of another shape whose rows the model does not declare.
    """
    grown = {}
    for name, fresh in new.items():
        initial = fresh.detach().cpu()
        if name not in old:
            raise DataError(f"it has no {name}")
        if name in rows:
            shapes = [list(old[name].shape), list(initial.shape)]
            for shape in shapes:
                shape[rows[name].dim] = 0
            if shapes[0] != shapes[1]:
                raise DataError(
                    f"{name} is {list(old[name].shape)} in it and {list(initial.shape)} here: "
                    "other options of the model"
                )
            part = carried(old[name], initial, rows[name], known)
            grown[name] = first_rows(part, initial, rows[name], known, dataset)
        elif old[name].shape != initial.shape:
            raise DataError(
                f"the weight {name} has another shape for these data, and the model does not say "
                "what its rows stand for (Model.rows_of): train a new run"
            )
        else:
            grown[name] = old[name]
    return grown
