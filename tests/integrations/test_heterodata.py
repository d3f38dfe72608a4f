"""To PyG's HeteroData and back."""

from __future__ import annotations

import warnings

import pytest

from hasten.config import TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.store import fingerprint
from hasten.data.tables import TRAIN
from hasten.errors import DataError, UsageError
from hasten.integrations.heterodata import from_hetero_data, to_hetero_data
from tests.models.typed_graph.test_hgt import table

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")


def graph():
    return load_graph(TripleOptions(ratios=(0.7, 0.15, 0.15)), 0, table())


def test_there_and_back_is_the_same_graph():
    whole = load_graph(TripleOptions(ratios=(1, 0, 0)), 0, table())
    data = to_hetero_data(whole)
    assert data["drug"].num_nodes == 12
    assert data["drug", "targets", "gene"].edge_index.shape[0] == 2
    again = load_graph(TripleOptions(ratios=(1, 0, 0)), 0, from_hetero_data(data))
    assert fingerprint(again) == fingerprint(whole)


def test_parts_can_be_chosen():
    dataset = graph()
    data = to_hetero_data(dataset, TRAIN)
    total = sum(data[kind].edge_index.shape[1] for kind in data.edge_types)
    assert total == len(dataset.of(TRAIN))


def test_edges_to_nothing_are_refused():
    data = to_hetero_data(graph())
    data["drug"].num_nodes = 3
    with pytest.raises(DataError, match="an edge to node"):
        from_hetero_data(data)


def test_a_graph_without_types_is_refused():
    columns = {"head": [0, 1], "relation": [0, 0], "tail": [1, 0]}
    plain = load_graph(TripleOptions(ratios=(1, 0, 0)), 0, columns)
    with pytest.raises(UsageError, match="no types"):
        to_hetero_data(plain)
