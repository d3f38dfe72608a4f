"""A graph whose rows are divided over processes: the parts are those of the whole graph."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hasten.distributed.row_shard import RowShard
from hasten.ops.graph import graph_shard
from hasten.ops.graph.bipartite import Bipartite
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.graph_shard import GraphShard, column_blocks

#: users without items, and items without users
PAIRS = CSR(np.array([0, 3, 3, 5, 9, 10, 10]), np.array([0, 4, 6, 1, 4, 0, 2, 4, 6, 6]))
ITEMS, NODES = 8, 14


def shard(rank: int, world: int, total: int = NODES) -> RowShard:
    return RowShard(SimpleNamespace(world=world, rank=rank), total)


@pytest.mark.parametrize(("rank", "world"), [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)])
def test_the_part_of_pairs_has_the_rows_of_the_whole_graph(rank, world):
    whole = Bipartite.build(PAIRS, ITEMS, "symmetric").adjacency.to(torch.empty(0))
    own = shard(rank, world)
    part = GraphShard.of_pairs(own, PAIRS, ITEMS, torch.empty(0))
    offsets = whole.structure.offsets[own.first : own.stop + 1]
    some = slice(int(offsets[0]), int(offsets[-1]))
    assert part.transposed is part.rows
    assert torch.equal(part.rows.offsets, offsets - offsets[0])
    assert torch.equal(part.rows.columns, whole.structure.columns[some])
    assert torch.equal(part.rows.values, whole.weights.values[some])


@pytest.mark.parametrize(("rank", "world"), [(0, 2), (1, 2), (1, 3)])
def test_the_part_of_edges_has_rows_of_the_graph_and_of_its_transpose(rank, world):
    whole = Bipartite.build(PAIRS, ITEMS, "mean").adjacency.structure
    values = torch.rand(len(whole))
    own = shard(rank, world)
    row, column = whole.rows.numpy(), whole.host_columns.long().numpy()
    part = GraphShard.of_edges(own, row, column, values)
    weights = whole.weigh(values)
    sides = (
        (part.rows, whole.offsets, whole.columns, weights.values),
        (part.transposed, whole.offsets_t, whole.columns_t, weights.transposed),
    )
    for entries, offsets, columns, expected in sides:
        bounds = offsets[own.first : own.stop + 1]
        some = slice(int(bounds[0]), int(bounds[-1]))
        assert torch.equal(entries.offsets, bounds - bounds[0])
        assert torch.equal(entries.columns, columns[some])
        assert torch.equal(entries.values, expected[some])
    assert part.edges.stop - part.edges.first == len(part.rows.columns)


@pytest.mark.parametrize(
    ("size", "widths"),
    # a column of 12 rows has 48 bytes, the 4 rows of a process have 160
    [(1, [3, 3, 3, 1]), (200, [4, 4, 2]), (250, [5, 5]), (10_000, [10])],
)
def test_gathered_columns_are_bounded(size, widths, monkeypatch):
    monkeypatch.setattr(graph_shard, "BUFFER_BYTES", size)
    blocks = column_blocks(shard(0, 3, 12), torch.empty(4, 10))
    assert [block.stop - block.start for block in blocks] == widths
    assert [block.start for block in blocks] == [0, *np.cumsum(widths)[:-1]]
    assert all(12 * 4 * width <= max(size, 160) for width in widths)


def test_at_least_one_column_is_gathered(monkeypatch):
    monkeypatch.setattr(graph_shard, "BUFFER_BYTES", 1)
    blocks = column_blocks(shard(0, 12, 12), torch.empty(1, 2))
    assert [(block.start, block.stop) for block in blocks] == [(0, 1), (1, 2)]
