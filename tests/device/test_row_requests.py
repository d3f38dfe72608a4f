"""Rows that processes ask for, on a simulated CUDA device: what the host waits for in a step."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.distributed.row_requests import RowRequests
from tests.device.recorder import recording
from tests.device.simulation import simulated

#: bounds of two tables on three processes
TABLES = [[0, 34, 67, 101], [0, 5, 11, 17]]


class First(Processes):
    """The first of three processes that read the same rows, so each sends what this one sends."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.world = 3

    def all_to_all(self, tensor: Tensor, given: list[int], taken: list[int], what: str) -> Tensor:
        assert tensor.device == self.device, "a tensor of the host in a collective of devices"
        parts = [tensor[a:b] for a, b in pairwise([0, *accumulate(given)])]
        if what == "the rows of examples":  # of the others: not known here
            return torch.cat([parts[0], tensor.new_zeros(sum(taken[1:]), *tensor.shape[1:])])
        return torch.cat([parts[0]] * 3)


@pytest.mark.parametrize("tables", [1, 2])
def test_a_step_copies_one_tensor_to_the_host(tables):
    count = sum(bounds[-1] for bounds in TABLES[:tables])
    ids = torch.arange(0, count, 3)
    held = torch.cat([torch.arange(34), 101 + torch.arange(5)][:tables])
    table = torch.randn(count, 4)
    gradients = torch.randn(len(ids), 4)
    with simulated("cuda") as device:
        ask = RowRequests(First(device), TABLES[:tables])
        on_device = ids.to(device)
        ask(on_device)  # finds how much space messages need
        rows, values = table[held].to(device), gradients.to(device)
        with recording() as recorder:
            requested = ask(on_device)
            fetched = requested.fetch(rows.index_select(0, requested.rows))
            sums = requested.sum_back(values)
        asked, fetched, sums = (each.cpu() for each in (requested.rows, fetched, sums))
    own = torch.isin(ids, held)
    assert torch.equal(held[asked], ids[own])
    assert torch.equal(fetched[own], table[ids[own]])
    torch.testing.assert_close(sums, 3 * gradients[own])
    assert not recorder.mistakes
    assert recorder.downloads.total() == recorder.uploads.total() == 1
    assert recorder.waits == recorder.downloads  # once, before the sizes of messages are known
