"""Rows of an initialized table are those of the whole table."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hasten.ops import initial_rows
from hasten.ops.initial_rows import xavier_normal_rows
from hasten.training.memory.limit import MemoryLimit


@pytest.mark.parametrize(
    ("count", "width"), [(3, 2), (5, 3), (16, 1), (7, 16), (101, 7), (333, 5), (64, 32), (1000, 33)]
)
@pytest.mark.parametrize("piece", [16, 64, 1 << 20])
def test_rows_and_generator_are_those_of_the_whole_table(count, width, piece, monkeypatch):
    monkeypatch.setattr(initial_rows, "_PIECE", piece)
    torch.manual_seed(7)
    whole = nn.init.xavier_normal_(torch.empty(count, width))
    after = torch.randn(5)
    for first, stop in [(0, count), (0, count // 2), (count // 3, count - 1), (count, count)]:
        torch.manual_seed(7)
        found = xavier_normal_rows(count, width, first, stop)
        assert torch.equal(found, whole[first:stop])
        assert torch.equal(torch.randn(5), after)


def test_other_rows_take_no_memory(monkeypatch):
    monkeypatch.setattr(initial_rows, "_PIECE", 1 << 10)
    with MemoryLimit() as held:
        xavier_normal_rows(100_000, 8, 25_000, 50_000)
    assert held.bytes <= 4 * (25_000 * 8 + (1 << 10) + 16)
