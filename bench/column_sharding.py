"""Would it pay to divide the propagation over processes? A layer repeated against one in columns.

    python -m bench.column_sharding --provisional
    python -m bench.column_sharding --processes 2 --threads 1 --scale 1.0

A layer of KGAT, ``lrelu((x + A x) W1) + lrelu((x * A x) W2)``, forward and backward, on the graph
of Amazon-book's size. Repeated: every process computes all of it, as training does. Divided: a
process holds its rows of x and of the result; for the product it has all rows of its columns,
which two exchanges (all-to-all) bring there and back, and two more of the gradients. Columns are
summed alike on both sides, so that the results differ by the rounding of the dense maps alone.
Processes talk by gloo on this machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from bench.book_graph import book_graph
from bench.kgat_side import dataset_of
from bench.machine import load
from bench.results import RESULTS, circumstances, page, with_interval, write_result
from bench.statistics import spread
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from hasten.ops.graph.spmm import EdgeWeights, SparseGraph, spmm

WIDTH = 64


class _Exchange(torch.autograd.Function):
    """Rows of every column to columns of every row, or back; the gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, to_columns: bool) -> Tensor:
        ctx.to_columns = to_columns
        return _to_columns(x) if to_columns else _to_rows(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (_to_rows(grad) if ctx.to_columns else _to_columns(grad)), None


def _to_columns(rows: Tensor) -> Tensor:
    """[N / P, D] of each process to [N, D / P]."""
    count = dist.get_world_size()
    sent = torch.stack(rows.chunk(count, 1)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received.flatten(0, 1)


def _to_rows(columns: Tensor) -> Tensor:
    """[N, D / P] of each process to [N / P, D]."""
    count = dist.get_world_size()
    sent = torch.stack(columns.chunk(count, 0)).contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return torch.cat(list(received), 1)


def combine(x: Tensor, summed: Tensor, maps: Sequence[Tensor]) -> Tensor:
    return F.leaky_relu((x + summed) @ maps[0]) + F.leaky_relu((x * summed) @ maps[1])


def layer(graph: SparseGraph, weights: EdgeWeights, x: Tensor, maps: Sequence[Tensor]) -> Tensor:
    return combine(x, spmm(graph, weights, x), maps)


def divided(graph: SparseGraph, weights: EdgeWeights, x: Tensor, maps: Sequence[Tensor]) -> Tensor:
    """The same for this process's rows."""
    columns = cast(Tensor, _Exchange.apply(x, True))  # type: ignore[no-untyped-call]
    summed = spmm(graph, weights, columns)
    back = cast(Tensor, _Exchange.apply(summed, False))  # type: ignore[no-untyped-call]
    return combine(x, back, maps)


def work(rank: int, options: argparse.Namespace) -> None:
    """One process: time both ways in turn, and compare what they gave."""
    torch.set_num_threads(options.threads)
    dist.init_process_group(
        "gloo", f"file://{options.store}", rank=rank, world_size=options.processes
    )
    torch.manual_seed(0)
    found = CollaborativeGraph.of(dataset_of(book_graph(options.scale)))
    nodes = found.nodes + -found.nodes % options.processes
    graph = SparseGraph.build(found.head, found.tail, nodes, nodes)
    weights = graph.weigh(torch.rand(len(graph)) / 30)
    table, upper = torch.randn(nodes, WIDTH), torch.randn(nodes, WIDTH)
    maps = [(torch.randn(WIDTH, WIDTH) / 8).requires_grad_() for _ in range(2)]
    share = slice(rank * nodes // options.processes, (rank + 1) * nodes // options.processes)

    def run(how: Callable[..., Tensor], part: slice) -> tuple[float, Tensor, Tensor]:
        x = table[part].clone().requires_grad_()
        dist.barrier()
        begin = time.perf_counter()
        result = how(graph, weights, x, maps)
        gradient = torch.autograd.grad(result, [x, *maps], upper[part])[0]
        dist.barrier()
        return time.perf_counter() - begin, result.detach()[: share.stop], gradient

    ways = {"repeated": (layer, slice(0, nodes)), "divided": (divided, share)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    last = {}
    for number in range(options.rounds + 1):
        for name in list(ways) if number % 2 else list(ways)[::-1]:
            took, *last[name] = run(*ways[name])
            if number:  # the first is to get everything into place
                seconds[name].append(took)
    whole, mine = ([each.clone() for each in last[name]] for name in ways)
    differ = max(
        float((a[share] - b).abs().max() / a.abs().max()) for a, b in zip(whole, mine, strict=True)
    )
    if rank == 0:
        Path(options.report).write_text(
            json.dumps({"seconds": seconds, "differ": differ, "edges": len(graph), "nodes": nodes})
        )
    dist.destroy_process_group()


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of a process")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the graph")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rank is not None:
        work(options.rank, options)
        return 0
    before = load()
    found = launch(options)
    seconds = found.pop("seconds")
    ratios = [a / b for a, b in zip(seconds["repeated"], seconds["divided"], strict=True)]
    result = {
        "name": f"column-sharding-{options.processes}",
        **circumstances(before, options.provisional),
        "settings": {"threads": options.threads, "scale": options.scale, "width": WIDTH, **found},
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "ratio": spread(ratios),
        "repeat": "python -m bench.column_sharding " + " ".join(sys.argv[1:]),
    }
    path = write_result(result, markdown(result), results)
    print(markdown(result))
    print(path)
    return 0


def launch(options: argparse.Namespace) -> dict[str, Any]:
    """Run the processes; what the first one reports."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "bench.column_sharding"]
        for name in ("processes", "threads", "rounds", "scale"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--store", str(Path(scratch) / "store"), "--report", str(report)]
        running = [
            subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(options.processes)
        ]
        codes = [each.wait() for each in running]
        if any(codes):
            raise SystemExit("a process failed")
        found: dict[str, Any] = json.loads(report.read_text())
    return found


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    chosen, seconds = result["settings"], result["seconds"]
    about = (
        f"{chosen['nodes']:,} nodes, {chosen['edges']:,} edges, width {chosen['width']}, "
        f"{chosen['threads']} thread(s) a process."
    )
    lines = [
        "| a layer, forward and backward | s |",
        "| --- | --- |",
        f"| repeated on every process | {with_interval(seconds['repeated'])} |",
        f"| divided by columns | {with_interval(seconds['divided'])} |",
        "",
        f"{with_interval(result['ratio'])} times as fast; largest difference "
        f"{chosen['differ']:.1e} of the largest number.",
    ]
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())
