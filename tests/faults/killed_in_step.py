"""``hasten`` that is killed in a step: ``python -m tests.faults.killed_in_step ARGUMENTS``.

``HASTEN_TEST_KILLS`` is a list of [rank, step]: the n-th entry is for the n-th start of torchrun,
and counts the steps since that start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from hasten.cli.main import main
from hasten.training.step import OptimizerStep


def kill_at(step: int) -> None:
    """Let the process die at the beginning of its n-th optimizer step."""
    take_step, steps = OptimizerStep.__call__, iter(range(1, 1 << 30))

    def killed_step(*arguments: Any) -> Any:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return take_step(*arguments)

    OptimizerStep.__call__ = killed_step  # type: ignore[method-assign]


if __name__ == "__main__":
    kills = json.loads(os.environ["HASTEN_TEST_KILLS"])
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if start < len(kills):
        rank, step = kills[start]
        if rank == int(os.environ["RANK"]):
            kill_at(step)
    sys.exit(main())
