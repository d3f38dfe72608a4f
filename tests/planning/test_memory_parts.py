"""Counting memory: each block once, and activations as long as the graph keeps them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from hasten.data.tables import Interactions
from hasten.planning.memory_parts import MemoryParts, SavedActivations


def test_a_block_is_counted_once():
    weight = nn.Parameter(torch.zeros(10, 4))
    parts = MemoryParts()
    assert parts.count([weight, weight.data[2:], weight.detach().T]) == 160
    assert parts.count({"again": weight}) == 0


def test_arrays_of_datasets_and_arrow_columns_are_found():
    array = np.arange(100)
    assert MemoryParts().count(Interactions(array, array[::2], array.astype(np.float32))) == 1200
    assert MemoryParts().count({"a": pa.array([1, 2, 3]), "b": [None, "text", 4]}) >= 24


def test_modules_and_optimizers_are_walked():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert MemoryParts().count(module) == 4 * (16 + 4 + 4 + 4 + 4 + 4) + 8
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(3, 4)).sum().backward()
    optimizer.step()
    parts = MemoryParts()
    parts.count([*module.parameters(), *(p.grad for p in module.parameters())])
    moments = 2 * 4 * (16 + 4 + 4 + 4)
    assert parts.count(optimizer) == moments + 4 * 4  # and the number of steps of each


def test_activations_are_those_alive_together():
    weight = torch.ones(8, 8, requires_grad=True)
    parts = MemoryParts()
    parts.count(weight)
    with SavedActivations(parts) as saved:
        for _ in range(3):  # micro-batches: the graph of one is gone before the next
            x = torch.ones(5, 8)
            hidden = torch.relu(x @ weight)
            (hidden * hidden).sum().backward()
    assert saved.peak == 2 * 5 * 8 * 4  # x and hidden, the latter saved by two operations
    assert saved.now == 0
