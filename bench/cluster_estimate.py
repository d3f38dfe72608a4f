"""What a cluster of GPUs would need to train on data that no machine here can hold: computed.

    python -m bench.cluster_estimate --events 1000000000 --items 100000000 --gpus 1 8 64

SASRec with sampled softmax. Nothing is run at this size. The pieces of a step (FLOPs, bytes that
operations move, bytes kept for the backward pass, the host's seconds, each per target) are
measured by running the step at a small size on a CPU; bytes of tables, data and messages follow
from the arrays of the code; bandwidths are those that the maker states. So seconds are lower
bounds: operations at the stated peak, nothing waits but for what is listed. All assumptions are
printed with the result.

Two ways to hold the table of N rows and width D on P GPUs, of which a step reads R rows in all, and
r for the examples of one GPU:

- whole: on each GPU; the gradients of the R rows are summed, or of the whole table if R is more
  than a third of N;
- sharded: N / P rows each, each GPU asks for its r rows and sends their gradients back (decision
  16).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.pieces_of_a_step import Pieces, measure_pieces
from bench.results import RESULTS, circumstances, page, write_result
from hasten.distributed.touched_rows import MIN_TABLE_TO_TOUCHED_RATIO

NAME = "cluster-estimate"
WAYS = ("whole", "sharded")
FLOAT, INT64 = 4, 8


@dataclass(frozen=True)
class Hardware:
    """Per GPU unless it says otherwise; bytes, seconds and operations a second."""

    memory: float = 80e9
    bandwidth: float = 3.35e12
    flops: float = 67e12
    nvlink: float = 450e9
    network: float = 50e9
    launch: float = 5e-6
    gpus_of_a_machine: int = 8
    memory_of_a_machine: float = 2e12


SOURCES = {
    "memory": "NVIDIA H100 SXM data sheet: 80 GB",
    "bandwidth": "the same: 3.35 TB/s",
    "flops": "the same: fp32 without TF32, 67 TFLOP/s",
    "nvlink": "the same: NVLink 900 GB/s, half of it in each direction",
    "network": "NVIDIA DGX H100 data sheet: one port of 400 Gb/s InfiniBand for each GPU",
    "launch": "assumed: 5 µs a kernel, without CUDA graphs",
    "gpus_of_a_machine": "DGX H100",
    "memory_of_a_machine": "DGX H100 data sheet: 2 TB",
}


@dataclass(frozen=True)
class Workload:
    """The data, the model and the step.

    batch: users of a step for each GPU. popularity: the exponent a of ``p(i) ~ i^-a``, the part of
    events with item i (2/3: as in made data). kernels: of a step, as counted for
    ``sasrec-sampled-softmax`` in docs/devices.md.
    """

    events: int = 10**9
    items: int = 10**8
    events_of_a_user: int = 20
    width: int = 64
    blocks: int = 2
    batch: int = 1024
    negatives: int = 2048
    popularity: float = 2 / 3
    validated_users: int = 10_000
    kernels: int = 146

    @property
    def users(self) -> int:
        return self.events // self.events_of_a_user


@cache
def expected_distinct(items: int, exponent: float, draws: float) -> float:
    """Distinct items among ``draws`` independent ones with ``p(i) ~ i^-exponent``.

    The sum of ``1 - (1 - p_i)^draws``; items of nearly equal rank are taken together.
    """
    edges = np.unique(np.geomspace(1, items + 1, 200_000).astype(np.int64))
    first, count = edges[:-1].astype(np.float64), np.diff(edges)
    weight = (first + (count - 1) / 2) ** -exponent
    share = weight / np.sum(weight * count)
    return float(np.sum(count * -np.expm1(draws * np.log1p(-np.minimum(share, 1 - 1e-12)))))


def rows_read(work: Workload, gpus: int) -> tuple[float, float]:
    """Expected distinct rows of a step: of the examples of all GPUs, and of one."""
    targets = work.batch * work.events_of_a_user

    def distinct(draws: float) -> float:
        return min(
            float(work.items),
            expected_distinct(work.items, work.popularity, draws)
            + expected_distinct(work.items, 0.0, work.negatives),
        )

    return distinct(targets * gpus), distinct(targets)


def summed_rows(work: Workload, gpus: int) -> float:
    """Rows of whole tables whose gradients are summed over GPUs."""
    read = rows_read(work, gpus)[0]
    return read if MIN_TABLE_TO_TOUCHED_RATIO * read <= work.items else float(work.items)


def gpu_bytes(work: Workload, pieces: Pieces, way: str, gpus: int) -> dict[str, float]:
    """The memory of a GPU by what it holds. In fp32, with Adam."""
    table = FLOAT * work.items * work.width
    read, own = (FLOAT * work.width * rows for rows in rows_read(work, gpus))
    dense = 4 * FLOAT * pieces.dense_parameters
    found = {"activations": pieces.kept_bytes * work.batch * work.events_of_a_user}
    if way == "whole":  # a step ends with the gradient, and the buffer of the all-reduce
        buffer = FLOAT * work.width * summed_rows(work, gpus) if gpus > 1 else 0.0
        gradients = table + buffer + dense
        return {"weights": table, "moments": 2 * table, "gradients": gradients} | found
    last_update = INT64 * work.items / gpus
    held = {"weights": table / gpus + last_update, "moments": 2 * table / gpus}
    # rows of examples and their gradients, each once more at its holder, which has the distinct
    # ones with moments and gradients
    rows = 4 * own + 4 * read / gpus
    return held | {"gradients": rows + dense} | found


def sent_bytes(work: Workload, pieces: Pieces, way: str, gpus: int) -> dict[str, float]:
    """What a GPU sends in a step; as much arrives. Sums by a ring: 2 (P - 1) / P of the bytes.

    ids: with whole tables those of each GPU go to all; else to their holders, with a quarter more.
    """
    others = (gpus - 1) / gpus
    own = rows_read(work, gpus)[1]
    row = FLOAT * work.width
    dense = 2 * others * FLOAT * pieces.dense_parameters
    if way == "whole":
        ids = INT64 * (gpus - 1) * own
        return {"rows": 2 * others * row * summed_rows(work, gpus), "dense": dense, "ids": ids}
    return {"rows": others * 2 * row * own, "dense": dense, "ids": others * INT64 * own * 5 / 4}


def step_seconds(
    work: Workload, pieces: Pieces, hardware: Hardware, way: str, gpus: int
) -> dict[str, float]:
    """Lower bounds of the parts of a step; ``plan`` runs beside the others, in a thread.

    requests: if the table is sharded, the host finds the rows that others ask for, and the device
    waits. With whole tables the device joins the ids of all processes, which is not counted.
    """
    targets = work.batch * work.events_of_a_user
    own = rows_read(work, gpus)[1]
    plan = pieces.plan_seconds * targets + pieces.order_seconds * work.batch * gpus
    asked = pieces.request_seconds * own if way == "sharded" and gpus > 1 else 0.0
    updated = work.items if way == "whole" else rows_read(work, gpus)[0] / gpus
    # Adam: weight, gradient and two moments read, three written; one more pass for the norm
    adam = 8 * FLOAT * work.width * updated
    if way == "whole":
        adam += FLOAT * work.width * work.items  # the gradient is filled with zeros first
    moved = (pieces.moved_bytes * targets + adam) / hardware.bandwidth
    link = hardware.nvlink if gpus <= hardware.gpus_of_a_machine else hardware.network
    return {
        "compute": max(pieces.flops * targets / hardware.flops, moved),
        "launches": work.kernels * hardware.launch,
        "exchange": sum(sent_bytes(work, pieces, way, gpus).values()) / link,
        "requests": asked,
        "plan": plan,
    }


def seconds(parts: Mapping[str, float]) -> float:
    """Of a step: launches overlap with the work of the device, and the plan with everything."""
    device = max(parts["compute"], parts["launches"]) + parts["exchange"] + parts["requests"]
    return max(device, parts["plan"])


def evaluation_seconds(work: Workload, hardware: Hardware, users: int, gpus: int) -> float:
    """Scores of so many users and all items: the product, and each score written and read once."""
    scores = users * work.items / gpus
    return scores * (2 * work.width / hardware.flops + 2 * FLOAT / hardware.bandwidth)


def evaluation_bytes(work: Workload, way: str, users: int, gpus: int) -> float:
    """What a GPU sends: four counts of each target; of sharded tables the rows of all histories.

    Every process encodes all queries of a sharded table, whose rows are exchanged tile by tile;
    rows that a tile reads twice are counted twice.
    """
    others = (gpus - 1) / gpus
    counts = 2 * others * 4 * INT64 * users
    rows = others * FLOAT * work.width * users * work.events_of_a_user
    return counts if way == "whole" else counts + rows


def host_bytes(work: Workload, pieces: Pieces, local: int) -> dict[str, float]:
    """The memory of a machine with ``local`` processes. Pages of the store can be dropped."""
    return {
        "store in the page cache": pieces.store_bytes * work.events,
        "arrays of users": local * pieces.user_bytes * work.users,
        "arrays of items": local * pieces.item_bytes * work.items,
        "whole tables while they are built": local * FLOAT * work.items * work.width,
    }


def estimate(
    work: Workload, pieces: Pieces, hardware: Hardware, way: str, gpus: int
) -> dict[str, Any]:
    """Everything of one way on so many GPUs."""
    local = min(gpus, hardware.gpus_of_a_machine)
    steps = math.ceil(work.users / (work.batch * gpus))
    parts = step_seconds(work, pieces, hardware, way, gpus)
    memory = gpu_bytes(work, pieces, way, gpus)
    host = host_bytes(work, pieces, local)
    needs = {
        "memory of a GPU": sum(memory.values()) / hardware.memory,
        "memory of a machine": sum(host.values()) / hardware.memory_of_a_machine,
    }
    read, own = rows_read(work, gpus)
    return {
        "way": way,
        "gpus": gpus,
        "steps": steps,
        "rows": {"all": read, "one": own},
        # weights and moments of whole tables, which rank 0 writes
        "checkpoint_bytes": 3 * FLOAT * work.items * work.width,
        "gpu_bytes": memory,
        "host_bytes": host,
        "sent_bytes": sent_bytes(work, pieces, way, gpus),
        "seconds": parts,
        # every process shuffles all users before the first step of an epoch
        "shuffle_seconds": pieces.shuffle_seconds * work.users,
        "epoch_seconds": steps * seconds(parts) + pieces.shuffle_seconds * work.users,
        "validation_seconds": evaluation_seconds(work, hardware, work.validated_users, gpus),
        "validation_bytes": evaluation_bytes(work, way, work.validated_users, gpus),
        "evaluation_bytes": evaluation_bytes(work, way, work.users, gpus),
        "evaluation_seconds": evaluation_seconds(work, hardware, work.users, gpus),
        "used": needs,
        "breaks_first": max(needs, key=lambda name: needs[name]),
        "largest_part": max(parts, key=lambda name: parts[name]),
    }


def table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each estimate."""

    def gb(values: Mapping[str, float]) -> str:
        return f"{sum(values.values()) / 1e9:,.3g}"

    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "table": lambda f: f["way"],
        "GPUs": lambda f: str(f["gpus"]),
        "GPU: weights, moments, gradients, activations, GB": lambda f: ", ".join(
            f"{value / 1e9:,.3g}" for value in f["gpu_bytes"].values()
        ),
        "sum of 80": lambda f: gb(f["gpu_bytes"]),
        "machine, GB": lambda f: gb(f["host_bytes"]),
        "rows of a step: R, r": lambda f: ", ".join(f"{n:,.0f}" for n in f["rows"].values()),
        "sent by a GPU in a step, MB": lambda f: f"{sum(f['sent_bytes'].values()) / 1e6:,.3g}",
        "compute, launches, exchange, requests, plan, ms": lambda f: ", ".join(
            f"{1e3 * value:,.3g}" for value in f["seconds"].values()
        ),
        "epoch, s (of it the order of users)": lambda f: (
            f"{f['epoch_seconds']:,.3g} ({f['shuffle_seconds']:,.2g})"
        ),
        "validation, all users, s": lambda f: (
            f"{f['validation_seconds']:,.2g}, {f['evaluation_seconds']:,.3g}"
        ),
        "it sends, MB": lambda f: (
            f"{f['validation_bytes'] / 1e6:,.3g}, {f['evaluation_bytes'] / 1e6:,.3g}"
        ),
        "nearest to its limit (part of it)": lambda f: (
            f"{f['breaks_first']} ({f['used'][f['breaks_first']]:,.2g})"
        ),
    }
    lines = ["| " + " | ".join(columns) + " |", "| --- " * len(columns) + "|"]
    lines += ["| " + " | ".join(cell(each) for cell in columns.values()) + " |" for each in found]
    return lines


def assumptions(work: Workload, hardware: Hardware, pieces: Pieces) -> list[str]:
    """What the figures follow from."""
    lines = ["", "Assumed of the work:", ""]
    lines += [f"- {name}: {value:,.4g}" for name, value in asdict(work).items()]
    lines += ["", "Stated of the hardware, in bytes, seconds and operations a second:", ""]
    lines += [f"- {name}: {v:,.4g} ({SOURCES[name]})" for name, v in asdict(hardware).items()]
    lines += ["", f"Measured on this machine ({pieces.how}):", ""]
    given = asdict(pieces)
    del given["how"]
    lines += [f"- {name}: {value:,.4g}" for name, value in given.items()]
    return lines


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    work = Workload()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in asdict(work).items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(value), default=value)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--no-record", action="store_true", help="print the table only")
    options = vars(parser.parse_args(arguments))
    gpus, record = options.pop("gpus"), not options.pop("no_record")
    work, hardware = Workload(**options), Hardware()
    pieces = measure_pieces(
        work.width, work.events_of_a_user, work.blocks, work.negatives, work.popularity
    )
    ways = [(way, count) for way in WAYS for count in gpus]
    found = [estimate(work, pieces, hardware, way, count) for way, count in ways]
    result = {
        "name": NAME,
        **circumstances(None, False),
        "work": asdict(work),
        "hardware": asdict(hardware),
        "pieces": asdict(pieces),
        "estimates": found,
        "repeat": "python -m bench.cluster_estimate " + " ".join(sys.argv[1:]),
    }
    about = "Computed, not run: lower bounds of seconds, from pieces measured at a small size."
    text = page(result, about, [*table(found), *assumptions(work, hardware, pieces)])
    print(text)
    if record:
        print(write_result(result, text, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
