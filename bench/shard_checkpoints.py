"""Write the checkpoint of a sharded table: by this package's writer, and by torch's.

    torchrun --nproc-per-node 2 -m bench.shard_checkpoints --items 1000000 --width 128

Weights and two Adam moments, of which each process holds the rows of its shard. *whole files*: rank
0 writes safetensors of whole tables, to which the others send their rows piece by piece, with
hashes, as :mod:`hasten.runs.checkpoint` does. *torch*: ``torch.distributed.checkpoint.save`` of
DTensors; *torch, asynchronous*: ``async_save``, once until it returns and once until the files are
there. In turns, in the same processes. Files are synced to the disk in all ways. Memory is what the
resident memory of the process that needs most grew by at its peak.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from hasten.config import DistributedOptions
from hasten.distributed.processes import Processes
from hasten.distributed.row_shard import RowShard
from hasten.runs.checkpoint import send_rows, write_checkpoint
from hasten.training.sharding.tables import ShardedTables

NAMES = ("weight", "exp_avg", "exp_avg_sq")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with Processes.join("cpu", DistributedOptions()) as processes:
        measure(processes, options)


def measure(processes: Processes, options: argparse.Namespace) -> None:
    shard = RowShard(processes, options.items)
    rows = torch.randn(shard.stop - shard.first, options.width)
    tensors = {name: rows * (number + 1) for number, name in enumerate(NAMES)}
    tables = ShardedTables(tensors={("training", name): shard for name in NAMES})
    mesh = init_device_mesh("cpu", (processes.world,))
    shape = torch.Size([options.items, options.width])
    parts = {
        name: DTensor.from_local(
            each, mesh, [Shard(0)], run_check=False, shape=shape, stride=rows.stride()
        )
        for name, each in tensors.items()
    }
    pending: list[Any] = []

    def whole_files(folder: Path) -> None:
        content = tables.whole({"training": tensors})
        if processes.is_rank0:
            write_checkpoint(folder, content, {})
        else:
            send_rows(content)

    def by_torch(folder: Path) -> None:
        save(dict(parts), storage_writer=FileSystemWriter(folder))

    def begin(folder: Path) -> None:
        writer = FileSystemWriter(folder)
        pending.append(async_save(dict(parts), storage_writer=writer))

    def finish(_folder: Path) -> None:
        pending.pop().result()

    ways: dict[str, list[Callable[[Path], None]]] = {
        "whole files": [whole_files],
        "torch": [by_torch],
        "torch, asynchronous": [begin, finish],
    }
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.rounds):
            for name, calls in ways.items():
                place = processes.run_on_rank0(lambda: scratch)
                folder = Path(place) / f"{name}-{number}".replace(", ", "-").replace(" ", "-")
                found[name].append(timed(calls, folder, processes))
                if processes.is_rank0:
                    shutil.rmtree(folder)
    if processes.is_rank0:
        print(
            "| way | seconds | until it returns | CPU s of rank 0, rank 1 | MiB | files | bytes |"
        )
        print("| --- " * 7 + "|")
        for name, values in found.items():
            each = [median(column) for column in zip(*values, strict=True)]
            wall, returned, cpu, other, grown, files, size = each
            print(
                f"| {name} | {wall:.2f} | {returned:.2f} | {cpu:.2f}, {other:.2f} "
                f"| {grown:,.0f} | {files:.0f} | {size:,.0f} |"
            )


def timed(calls: list[Callable[[Path], None]], folder: Path, processes: Processes) -> list[float]:
    """Seconds, seconds of the first call, CPU seconds of both ranks, memory, files and bytes."""
    processes.gather(None)
    begin, used = time.perf_counter(), time.process_time()
    with resident() as grown:
        calls[0](folder)
        returned = time.perf_counter() - begin
        for call in calls[1:]:
            call(folder)
    of_all = processes.gather([time.process_time() - used, grown[0]])
    wall = time.perf_counter() - begin
    files = [file for file in folder.rglob("*") if file.is_file()]
    size = float(sum(file.stat().st_size for file in files))
    cpu = [each[0] for each in of_all]
    return [wall, returned, cpu[0], cpu[-1], max(e[1] for e in of_all), float(len(files)), size]


@contextmanager
def resident() -> Iterator[list[float]]:
    """The most MiB by which the resident memory of this process is above its beginning."""

    def now() -> float:
        fields = Path("/proc/self/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

    first, ended = now(), threading.Event()
    grown = [0.0]

    def watch() -> None:
        while not ended.wait(0.01):
            grown[0] = max(grown[0], now() - first)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield grown
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
