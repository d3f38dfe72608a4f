"""Row-wise Adam on tables in mapped files, beside tables in memory: bytes, faults and seconds.

    python -m bench.mapped_tables --gigabytes 4 8 16

The optimizer's own :class:`RowAdam` takes steps on weights and moments of width 64 whose memory is
a file of the folder for temporary files (deleted at the end). Rows of a step are drawn uniformly,
or by a Zipf law of exponent 1 with the frequent rows scattered or at the beginning. Memory:

- memory: ordinary tensors (only for the first size);
- cached: mapped, and everything in the page cache (only for the first size);
- quarter: mapped, and before every step all pages but those of the first quarter of the rows are
  written back and dropped, as if memory held a quarter of the table, with the best choice of it
  where frequent rows are at the beginning;
- ahead: the same, and ``posix_fadvise`` requests the pages of the step before they are read.

Weights and moments of a row lie together (768 bytes), in order not to read three pages for a row.
Bytes are those of the disk (/proc/self/io): read in the step, and written back after it. Seconds:
CPU seconds, and what the clock showed, which depends on the disk and on whoever shares it.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.row_adam import RowAdam

#: two steps are timed: before the fourth of a run all rows are brought up to date (decision 10)
WIDTH, FIELDS, STEPS = 64, 3, 2
RECORD = 4 * WIDTH * FIELDS
_BLOCK = 1 << 15
_PAGE = mmap.PAGESIZE
#: bytes that one call of ``posix_fadvise`` reads ahead
_AHEAD = 1 << 17


@dataclass(frozen=True)
class Reading:
    """Of a step, the median of some: bytes of the disk, major faults, seconds."""

    read: float
    written: float
    faults: float
    cpu: float
    wall: float


class MappedFile:
    """float32 [N, 3, D] in a file: weights and both moments of each row."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self.rows = path, rows
        block = np.random.default_rng(0).random((_BLOCK, FIELDS, WIDTH), np.float32)
        with path.open("wb") as file:
            for start in range(0, rows, _BLOCK):
                file.write(block[: min(_BLOCK, rows - start)].data)
                if start % (32 * _BLOCK) == 0:  # leave the page cache to others
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.fsync(file.fileno())
        self.file = path.open("r+b")
        self.map = mmap.mmap(self.file.fileno(), 0)
        self.map.madvise(mmap.MADV_RANDOM)
        numbers = np.frombuffer(self.map, np.float32).reshape(rows, FIELDS, WIDTH)
        self.tensor = torch.from_numpy(numbers)

    def write_back(self) -> None:
        self.map.flush()

    def drop(self, first_row: int) -> None:
        """Drop the pages after those of this row; they must be written back."""
        start = -(-first_row * RECORD // _PAGE) * _PAGE
        self.map.madvise(mmap.MADV_DONTNEED, start)
        os.posix_fadvise(self.file.fileno(), start, 0, os.POSIX_FADV_DONTNEED)

    def keep(self, last_row: int) -> None:
        """Bring the rows before this one into the page cache, by single pages.

        Pages that were written or read in sequence lie there in folios of up to 2 MB, and a changed
        row would have the whole folio written back.
        """
        self.drop(0)
        for start in range(0, last_row * RECORD, _AHEAD):
            os.posix_fadvise(self.file.fileno(), start, _AHEAD, os.POSIX_FADV_WILLNEED)
        for block in torch.split(self.tensor[:last_row], _BLOCK):
            block.sum()

    def close(self) -> None:
        """Close the file; the mapping remains as long as its tensor."""
        self.file.close()

    def ask_for(self, ids: Tensor) -> None:
        """Let the system read the pages of these rows."""
        for row in ids.tolist():
            os.posix_fadvise(self.file.fileno(), row * RECORD, RECORD, os.POSIX_FADV_WILLNEED)


def optimizer(table: Tensor, ids: Callable[[Batch], Tensor], count: int) -> RowAdam:
    """Row-wise Adam on [N, 3, D]."""
    weight = nn.Parameter(table[:, 0])
    adam = RowAdam([weight], TrainingOptions(), TableRows(weight, ids, count))
    adam.first, adam.second = table[:, 1], table[:, 2]
    adam.found_inf = adam.grad_scale = None
    adam.set_rate(1e-3)
    return adam


def draw(law: str, rows: int, count: int, step: int) -> Tensor:
    """int64 [R] distinct rows of a step, ascending."""
    generator = np.random.default_rng([step, rows])
    if law == "uniform":
        drawn = generator.integers(0, rows, count)
    else:  # p(i) ~ 1 / i: the logarithm of the rank is uniform
        drawn = np.exp(generator.random(count) * np.log(rows)).astype(np.int64) - 1
        if law == "zipf, scattered":
            drawn = drawn * 2_654_435_761 % rows
    return torch.from_numpy(np.unique(drawn))


def measure(
    table: Tensor, law: str, count: int, file: MappedFile | None, memory: str
) -> tuple[Reading, float]:
    """A step, and how many distinct rows it reads."""
    rows = len(table)
    current = torch.empty(0, dtype=torch.int64)
    adam = optimizer(table, lambda _: current, count)
    found, sizes = [], []
    for step in range(STEPS + 1):
        current = draw(law, rows, count, step)
        if file is not None and memory in ("quarter", "ahead"):
            file.write_back()
            file.drop(rows // 4)
        before = _disk()
        begin = time.perf_counter(), time.process_time(), _faults()
        if file is not None and memory == "ahead":
            file.ask_for(current)
        leaf = adam.gather_rows(Batch(torch.arange(1), 0, 0, step))
        leaf.grad = torch.ones_like(leaf)
        adam.step()
        wall, cpu = time.perf_counter() - begin[0], time.process_time() - begin[1]
        faults, read = _faults() - begin[2], _disk()[0] - before[0]
        if file is not None:
            file.write_back()
        if step:  # the first allocates
            found.append((read, _disk()[1] - before[1], faults, cpu, wall))
            sizes.append(len(current))
    return Reading(*(median(values) for values in zip(*found, strict=True))), median(sizes)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _disk() -> tuple[int, int]:
    """Bytes that this process had read from the disk and written to it."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"]), int(lines["write_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[4.0])
    parser.add_argument("--rows", type=int, default=4096, help="drawn in a step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| GB | rows by | memory | distinct rows | read, MB | written, MB | major faults "
        "| CPU ms | clock, ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    laws = ("uniform", "zipf, scattered", "zipf, sorted")
    for number, size in enumerate(options.gigabytes):
        rows = int(size * 1e9 / RECORD)

        def show(law: str, memory: str, table: Tensor, file: MappedFile | None) -> None:
            found, distinct = measure(table, law, options.rows, file, memory)
            print(
                f"| {table.nbytes / 1e9:g} | {law} | {memory} | {distinct:,.0f} "
                f"| {found.read / 1e6:.2f} | {found.written / 1e6:.2f} | {found.faults:,.0f} "
                f"| {1e3 * found.cpu:.1f} | {1e3 * found.wall:.1f} |",
                flush=True,
            )

        if number == 0:
            table = torch.rand(rows, FIELDS, WIDTH)
            for law in laws:
                show(law, "memory", table, None)
            del table
        with tempfile.TemporaryDirectory() as scratch:
            file = MappedFile(Path(scratch) / "table", rows)
            for memory in ("quarter", "ahead", *(("cached",) if number == 0 else ())):
                file.write_back()
                file.keep(rows if memory == "cached" else rows // 4)
                for law in laws:
                    show(law, memory, file.tensor, file)
            file.close()


if __name__ == "__main__":
    main()
