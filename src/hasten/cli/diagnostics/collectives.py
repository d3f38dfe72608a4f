"""``hasten doctor --distributed``: whether collectives give correct sums, and how fast they are."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from hasten.config import DistributedOptions
from hasten.distributed.device import prepare_threads
from hasten.distributed.processes import Processes

#: bytes of the summed tensors, and how often each is measured
SIZES = ((8, 100), (1 << 16, 50), (1 << 20, 30), (1 << 24, 8))


def examine_processes(device: str, options: DistributedOptions) -> dict[str, Any]:
    """Check sums and broadcasts between the processes; measure latency and bandwidth of sums.

    ``bus_gb_per_second`` counts what each link of a ring carries, 2(n-1)/n of the tensor, so it is
    comparable between numbers of processes.
    """
    with Processes.join(device, options) as processes:
        prepare_threads(processes.launch)
        about = {
            "rank": processes.rank,
            "host": socket.gethostname(),
            "device": str(processes.device),
            "threads": torch.get_num_threads(),
            "variables": shown_variables(os.environ),
        }
        everyone = processes.gather(about)
        right = processes.gather(_is_right(processes))
        return {
            "ok": all(right),
            "wrong_ranks": [rank for rank, each in enumerate(right) if not each],
            "backend": processes.backend,
            "world": processes.world,
            "processes": everyone,
            "sums": [_measure(processes, size, count) for size, count in SIZES],
        }


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment variables that affect several processes."""
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MASTER_ADDR", "MASTER_PORT")
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in names or name.startswith(("NCCL_", "GLOO_"))
    }


def _is_right(processes: Processes) -> bool:
    """Whether sums and broadcasts give exactly the expected values on this process."""
    n, device = processes.world, processes.device
    numbers = torch.arange(1000, dtype=torch.float32, device=device)
    summed = processes.sum_(numbers * (processes.rank + 1), "the sum of the test")
    sent = processes.broadcast_(numbers + processes.rank, "the broadcast of the test")
    return torch.equal(summed, numbers * (n * (n + 1) / 2)) and torch.equal(sent, numbers)


def _measure(processes: Processes, size: int, count: int) -> dict[str, Any]:
    numbers = torch.zeros(max(1, size // 4), device=processes.device)
    seconds = []
    for repeat in range(count + 3):
        start_time = time.perf_counter()
        processes.sum_(numbers, "a measured sum")
        if processes.device.type == "cuda":
            torch.cuda.synchronize(processes.device)
        if repeat >= 3:
            seconds.append(time.perf_counter() - start_time)
    typical = median(seconds)
    rate = size / typical / 1e9
    return {
        "bytes": size,
        "median_microseconds": typical * 1e6,
        "slowest_microseconds": max(seconds) * 1e6,
        "gb_per_second": rate,
        "bus_gb_per_second": rate * 2 * (processes.world - 1) / processes.world,
        "through": processes.backend,
    }


def lines(report: dict[str, Any]) -> list[str]:
    """The report as lines of text."""
    text = [f"{report['world']} processes, {report['backend']}"]
    for each in report["processes"]:
        variables = ", ".join(f"{k}={v}" for k, v in each["variables"].items())
        about = "rank {rank}  {host}, {device}, {threads} threads".format(**each)
        text.append(f"{about}  {variables}")
    names = ("bytes", "median us", "slowest us", "GB/s", "bus GB/s", "through")
    text += ["", "{:>12} {:>11} {:>11} {:>8} {:>9}  {}".format(*names)]
    row = "{:>12,} {:>11.0f} {:>11.0f} {:>8.3f} {:>9.3f}  {}"
    text += [row.format(*measured.values()) for measured in report["sums"]]
    wrong = ", ".join(map(str, report["wrong_ranks"]))
    return [*text, "", f"WRONG on ranks {wrong}" if wrong else "sums and broadcasts are right"]
