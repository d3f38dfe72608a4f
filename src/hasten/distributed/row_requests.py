"""Rows of sharded tables for the processes that read them, and their gradients back.

Each process sends the ids of the rows that it reads to the processes that hold them, and gets these
rows. After the backward pass it sends their gradients back, which the holders add up in the order
of ranks. So what a process sends is in proportion to the rows that its own examples read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, distinct
from hasten.distributed.processes import Processes
from hasten.ops.transfer import to_device


@dataclass(frozen=True)
class RequestedRows:
    """The rows that a process reads in a step, and those of its rows that processes read.

    rows: int64 [U] distinct, ascending: the numbers of the latter. places: int64, which of them
    each request means, in the order of ranks. given, taken: the rows that each process gets from
    this one, and sends to it. order: int64 [S], where the rows that this process reads are among
    those that it gets, one process after the other; None: in this order.
    """

    processes: Processes
    rows: Tensor
    places: Tensor
    given: list[int]
    taken: list[int]
    order: Tensor | None

    def fetch(self, held: Tensor) -> Tensor:
        """[S, D] the rows that this process reads. held: [U, D], its ``rows``. A collective."""
        given = held.index_select(0, self.places)
        rows = self.processes.all_to_all(given, self.given, self.taken, "the rows of examples")
        return rows if self.order is None else rows.index_select(0, self.order)

    def sum_back(self, values: Tensor) -> Tensor:
        """[U, D] the sum over processes for each of ``rows``, of [S, D] of each. A collective."""
        if self.order is not None:
            values = torch.empty_like(values).index_copy_(0, self.order, values)
        received = self.processes.all_to_all(
            values, self.taken, self.given, "the gradients of rows"
        )
        sums = values.new_zeros(len(self.rows), *values.shape[1:])
        # one process after the other: its rows are distinct, so the order of a sum is that of ranks
        for start, stop in pairwise([0, *accumulate(self.given)]):
            sums.index_add_(0, self.places[start:stop], received[start:stop])
        return sums


def asked_for(requests: Int64) -> tuple[Int64, Int64]:
    """The distinct rows, ascending, and the place of each request among them."""
    rows = distinct(requests)
    return rows, np.searchsorted(rows, requests)


class RowRequests:
    """Finds the holders of rows and asks them: one all-to-all, two in steps with more ids.

    tables: [P + 1] the bounds of the parts of each table. Rows are numbered one table after the
    other, those of a process as well.
    """

    def __init__(self, processes: Processes, tables: Sequence[Sequence[int]]) -> None:
        self.processes, self.tables = processes, len(tables)
        bounds = torch.tensor(tables)
        lengths = bounds.diff(dim=1)
        first = bounds[:, -1:].cumsum(0) - bounds[:, -1:] + bounds[:, :-1]
        before = lengths.cumsum(0) - lengths
        device = processes.device
        #: of the part of a table that a process holds: the last of its ids and what to subtract
        self._last = (first + lengths - 1).view(-1).to(device)
        self._shift = (first - before).view(-1).to(device)
        #: ids for one process for which the messages have space, the same on all processes
        self.space = 0

    def __call__(self, ids: Tensor) -> RequestedRows:
        """Ask for these rows. ids: int64 [S] distinct, ascending, on the device. A collective.

        Copies the numbers of rows, and the ids that others ask for, to the host once.
        """
        world, device = self.processes.world, ids.device
        part = torch.searchsorted(self._last, ids)
        ends = torch.searchsorted(ids, self._last, right=True)
        counts = ends.diff(prepend=ends.new_zeros(1)).view(self.tables, world)
        asked = counts.sum(0)
        # in a message, the ids of one table follow those of the other
        moved = counts.cumsum(0) - ends.view_as(counts)
        place = torch.arange(len(ids), device=device) + moved.view(-1)[part]
        holder, local = part % world, ids - self._shift[part]
        while True:
            message = ids.new_zeros(world, 3 + self.space)  # the last is never read
            message[:, 0], message[:, 1] = asked, asked.max()
            message[holder, 2 + place.clamp(max=self.space)] = local
            each = [1] * world
            received = self.processes.all_to_all(message, each, each, "the ids of a step")
            on_host = torch.cat([asked, received.reshape(-1)]).cpu().numpy()
            most = int((messages := on_host[world:].reshape(world, -1))[:, 1].max())
            if most <= self.space:
                break
            self.space = most * 5 // 4
        given, wanted = messages[:, 0], messages[:, 2:-1]
        rows, places = asked_for(wanted[np.arange(self.space) < given[:, None]])
        order = None
        if self.tables > 1:
            order = (asked.cumsum(0) - asked)[holder] + place
        found = to_device((torch.from_numpy(rows), torch.from_numpy(places)), device)
        return RequestedRows(
            self.processes, *found, given.tolist(), on_host[:world].tolist(), order
        )
