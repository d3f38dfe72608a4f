"""The distinct rows that the steps of all processes read, from those of each."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.arrays import distinct
from hasten.distributed.processes import Processes


class RowUnion:
    """Exchanges ids with one all-gather, or two in steps with more ids than before.

    apart: in a process group of its own, for ids on the host, because a thread exchanges them while
    another one calls collectives: all processes must call those of one group in the same order. To
    make it is a collective then.
    """

    def __init__(self, processes: Processes, *, apart: bool = False) -> None:
        self.processes = processes
        self.group: Any = dist.new_group(backend="gloo") if apart and processes.joined else None
        #: ids of a process for which the messages have space, the same on all processes
        self.space = 0

    def __call__(self, ids: Tensor) -> Tensor:
        """int64 [S] the distinct ids of all processes, ascending, on all of them. A collective.

        ids: int64 [S_own] of this process, distinct and ascending.
        """
        while True:
            message = ids.new_zeros(1 + self.space)
            message[0] = len(ids)
            message[1 : 1 + len(ids)] = ids[: self.space]
            messages = self.processes.all_gather(message, "the ids of a step", self.group)
            counts = messages[:, 0].tolist()
            if max(counts) <= self.space:
                break
            self.space = max(counts) * 5 // 4
        together = torch.cat([each[1 : 1 + n] for each, n in zip(messages, counts, strict=True)])
        if together.device.type == "cpu":
            return torch.from_numpy(distinct(together.numpy()))
        rows: Tensor = torch.unique(together)
        return rows
