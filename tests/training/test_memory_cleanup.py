"""Pages really go back to the system, every so many steps, and no number changes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from hasten import api
from hasten.training import trainer
from hasten.training.memory import device as device_memory

_RELEASES = """
import os
from pathlib import Path
from hasten.runs.allocator import configure_process
configure_process()
import torch
from hasten.training.memory.device import can_release, release_memory
cpu = torch.device("cpu")
assert can_release(cpu)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
held = [torch.ones(1 << 20) for _ in range(48)]
kept, held = held[-1], None
before = resident()
release_memory(cpu)
print(before - resident())
"""


def test_memory_is_said_to_be_of_the_gpu_or_of_the_host(monkeypatch):
    monkeypatch.setattr(device_memory, "peak_memory_bytes", lambda: 3 << 30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: device.index << 20)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 5 << 20)
    assert device_memory.describe_memory(torch.device("cpu")) == "3,072 MiB RAM"
    assert device_memory.describe_memory(torch.device("cuda", 7)) == "7 MiB GPU  3,072 MiB RAM"
    assert device_memory.describe_memory(torch.device("mps")) == "5 MiB GPU  3,072 MiB RAM"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_pages_go_back_to_the_system():
    """Also with the settings that keep them, and although the last allocation is still in use."""
    found = subprocess.run(
        [sys.executable, "-c", _RELEASES], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) > 150 << 20


def test_it_is_done_every_so_many_steps_and_changes_no_number(tmp_path, monkeypatch):
    released = []
    monkeypatch.setattr(trainer, "release_memory", released.append)
    data = {name: [0, 1, 2, 3] for name in ("head", "tail")} | {"relation": [0, 0, 0, 0]}
    settings = {"model.width": 12, "training.batch_size": 3, "data.ratios": (1.0, 0.0, 0.0)}
    found = {}
    for every in (None, 2):
        settings["training.cleanup_every"] = every
        out = tmp_path / str(every)
        result = api.train(
            "distmult", data, settings=settings, epochs=2, device="cpu", out=out, quiet=True
        )
        found[every] = result
        assert result.summary.effective["cleanup_every"] == every
    steps = 2 * 3
    assert len(released) == steps // 2
    first, second = (dict(found[every].loaded.model.state_dict()) for every in (None, 2))
    assert all(bool((first[name] == second[name]).all()) for name in first)
