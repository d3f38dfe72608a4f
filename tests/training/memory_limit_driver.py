"""Trains within a limited address space; ``python -m tests.training.memory_limit_driver OUT HOW``.

HOW: ``retreat``, or ``raise`` for a run that ends when memory runs out. The limit is set after the
second step, when moments and caches are allocated, and leaves room for a part of a batch.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from hasten import api
from hasten.objectives.base import Batch
from hasten.training.memory.device import release_memory
from hasten.training.step import OptimizerStep
from tests.contract.cases import sequences

ROOM = 96 * 2**20
_step, _taken = OptimizerStep.__call__, [0]


def limited(
    self: OptimizerStep, batch: Batch, lr: float, flags: Sequence[float] = ()
) -> dict[str, Tensor]:
    self.skips_when_out_of_memory = sys.argv[2] == "retreat"
    if _taken[0] == 2:
        release_memory(self.device)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(
            resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, resource.RLIM_INFINITY)
        )
    _taken[0] += 1
    return _step(self, batch, lr, flags)


if __name__ == "__main__":
    OptimizerStep.__call__ = limited  # type: ignore[method-assign]
    settings = {
        "model.width": 256,
        "model.max_length": 50,
        "model.dropout": 0,
        "training.batch_size": 1024,
        "training.epochs": 2,
        "threads": 1,
        "device": "cpu",
    }
    api.train("sasrec", sequences(3000), settings=settings, out=sys.argv[1], quiet=True)
