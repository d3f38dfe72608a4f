"""A process of :mod:`.sharded_worker` on a simulated CUDA device of its own.

It is all device but its numbers: tensors of the device, its optimizers, batches that a thread
prepares, and collectives that take no tensor of the host.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.distributed.processes import Processes
from hasten.objectives import prefetch
from tests.device.measure import read_by_rows
from tests.device.simulation import simulated
from tests.distributed import sharded_worker

#: with whole tables, of which all processes gather the rows that any of them reads
WHOLE = ("sasrec-sampled-softmax", "bprmf")


def by_rows(processes: Processes) -> dict[str, Any]:
    """Steps of whole tables with row-wise Adam: a thread exchanges the ids of the next batch."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        read_by_rows(patch)
        patch.setattr(prefetch, "MANY_ROWS", 0)
        # to read the ids again would be another collective
        patch.setattr(sharded_worker, "_numbers_read", lambda *_: ("own", 0))
        for name in WHOLE:
            label, changes = sharded_worker.MODELS[name]
            whole = label, {**changes, "training.shard_tables": "never"}
            patch.setitem(sharded_worker.MODELS, name, whole)
            found[f"{name}, whole"] = sharded_worker.train(name, processes)
    return found


if __name__ == "__main__":
    with simulated("cuda", int(os.environ["RANK"])) as device:
        sharded_worker.DEVICE, sharded_worker.OUT = device, Path(sys.argv[1])
        sharded_worker.main("cuda", by_rows)
