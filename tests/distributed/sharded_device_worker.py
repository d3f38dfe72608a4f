"""A process of :mod:`.sharded_worker` on a simulated CUDA device of its own.

It is all device but its numbers: tensors of the device, its optimizers, batches that a thread
prepares, and collectives that take no tensor of the host.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.device.simulation import simulated
from tests.distributed import sharded_worker

if __name__ == "__main__":
    with simulated("cuda", int(os.environ["RANK"])) as device:
        sharded_worker.DEVICE, sharded_worker.OUT = device, Path(sys.argv[1])
        sharded_worker.main("cuda")
