"""Data in the mapped files of a store, of either kind."""

from __future__ import annotations

from hasten.data.event_store.mapped import MappedDataset
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.tables import AnyDataset

#: the datasets of stores
MAPPED = (MappedDataset, MappedGraph)


def in_memory(dataset: AnyDataset) -> AnyDataset:
    """The dataset, in memory if it is a store."""
    return dataset.in_memory() if isinstance(dataset, MAPPED) else dataset
