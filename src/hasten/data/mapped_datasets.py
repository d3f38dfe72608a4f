"""Datasets of prepared stores, events and graphs: which classes they are, and copies in memory."""

from __future__ import annotations

from hasten.data.event_store.mapped import MappedDataset
from hasten.data.graph_store.mapped import MappedGraph
from hasten.data.tables import AnyDataset

#: the classes of datasets whose arrays are memory-mapped files of a store
MAPPED = (MappedDataset, MappedGraph)


def in_memory(dataset: AnyDataset) -> AnyDataset:
    """The dataset, in memory if it is a store."""
    return dataset.in_memory() if isinstance(dataset, MAPPED) else dataset
