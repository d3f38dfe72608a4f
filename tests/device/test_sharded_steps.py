"""Steps over sharded tables of one process on a simulated CUDA device, beside those of a CPU.

Several processes are in :mod:`tests.distributed.test_sharded_tables_on_device`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from hasten.distributed.processes import Processes
from hasten.training.sharding.tables import divide_tables
from tests.device.recorder import Recorder, recording
from tests.device.simulation import simulated
from tests.distributed import sharded_worker as worker
from tests.distributed.alone import Alone

#: a model with each optimizer and loss, and how often the host waits for a step of a phase
WAITS = {
    "sasrec-bce": [1],
    "sasrec-ce": [1],
    "complex-1-n-softmax": [1],
    "bprmf": [1],
    "kgat": [0, 1],
}


def steps(name: str, processes: Processes) -> Iterator[tuple[int, dict[str, float], Recorder]]:
    """The phase of each step, its losses, and what it does."""
    config, _, model, phases = worker.built(name)
    if isinstance(processes, Alone):
        divide_tables(model, phases, processes)
    for number, phase in enumerate(phases):
        step = worker._step(phase, number, config, processes)
        phase.start_epoch(0, 0)
        for index in range(4):
            with recording() as taken:
                losses = step(step.plan(0, 0, index), worker.RATE)
            yield number, {key: float(value) for key, value in losses.items()}, taken


@pytest.mark.parametrize("name", WAITS)
def test_steps_are_those_of_a_cpu_and_wait_once(name, monkeypatch):
    expected = [losses for _, losses, _ in steps(name, Processes(torch.device("cpu")))]
    found: list[Any] = []
    with simulated("cuda") as device:
        monkeypatch.setattr(worker, "DEVICE", device)
        for phase, losses, taken in steps(name, Alone(device)):
            assert not taken.mistakes
            assert all("row_requests.py" in where for where in taken.waits)
            found.append((phase, losses, taken.waits.total()))
    for (_, ours, _), theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)
    for phase, waits in enumerate(WAITS[name]):
        assert min(count for number, _, count in found if number == phase) == waits
