"""The Triton kernels on a GPU: against float64, and beside PyTorch and the present operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.made_graph import MadeGraph, made_graph
from bench.plain_hgt import Edges, attend
from hasten.ops.attention.interval_attention import (
    _IntervalAttention,
    find_intervals,
    interval_attention_reference,
)
from hasten.ops.attention.pair_attention import _PairAttention
from hasten.ops.buckets import Bucket
from hasten.ops.graph.typed_edges import TypedEdges
from hasten.ops.losses import catalog_loss, one_to_many_loss
from hasten.ops.losses.half_residuals import residual_scale
from hasten.ops.transfer import to_device
from hasten.training.capture.graph import CudaGraphs

#: largest relative error by norm: two roundings of 8, 11 and 11 bits (TF32), the scores' among them
TOLERANCES = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10, torch.float32: 2.0**-9}
#: catalog rows of the timed cross-entropies; what does not fit into memory is left out
CATALOGS = (10_000, 100_000, 1_000_000, 10_000_000)
QUERIES, WIDTH, SMOOTHING, SPAN = 1024, 64, 0.1, 256
#: entities and width of ConvE on FB15k-237, queries of a step, and answers of a query
ENTITIES, CONVE_WIDTH, CONVE_QUERIES, ANSWERS = 14_541, 200, 512, 4

Operation = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """An operation of leaves: as kernels, as it runs without them, and plainly."""

    leaves: Sequence[Tensor]
    kernels: Operation
    present: Operation
    plain: Operation
    #: of a forward and a backward pass that compute and move nothing twice
    flops: float
    moved_bytes: float


def triton_kernels(
    device: torch.device, kinds: Sequence[torch.dtype] = tuple(TOLERANCES)
) -> dict[str, Any]:
    """Values and gradients against float64, at sizes that are no multiple of a tile."""
    if device.type != "cuda" and kinds == tuple(TOLERANCES):
        return {"passed": True, "skipped": "the kernels need a CUDA device"}
    errors, scale = {}, 8 if device.type == "cuda" else 1
    buckets = [Bucket(0, 2, 11 * scale), Bucket(22 * scale, 1, 5)]
    for kind in kinds:
        for name, case in {
            "cross-entropy": cross_entropy(device, kind, 37 * scale, 127 * scale, 50),
            "1-n": one_to_many(device, kind, 7 * scale, 61 * scale, 6 * scale),
            "interval attention": intervals(device, kind, buckets, 50),
            "edge attention": edges(device, kind, hub(12 * scale, 20 * scale**2), 3, 20),
        }.items():
            ours = _results(case.kernels, case.leaves)
            exact = _results(case.plain, [leaf.double() for leaf in case.leaves])
            found = max(_error(a, b) for a, b in zip(ours, exact, strict=True))
            errors[f"{name} {kind}"] = {"error": found, "tolerance": TOLERANCES[kind]}
    return {
        "passed": all(each["error"] < each["tolerance"] for each in errors.values()),
        "errors": errors,
    }


def triton_times(device: torch.device, catalogs: Sequence[int] = CATALOGS) -> dict[str, Any]:
    """Milliseconds of a forward and a backward pass in bf16, and the share of the roofline."""
    if device.type != "cuda":
        return {"passed": True, "skipped": "the kernels need a CUDA device"}
    limits = ceilings(device)
    half, buckets = torch.bfloat16, [Bucket(0, 128, 200)]
    cases: dict[str, Callable[[], Case]] = {
        f"cross-entropy, {QUERIES} x {rows:,}": partial(
            cross_entropy, device, half, QUERIES, rows, WIDTH
        )
        for rows in catalogs
    }
    cases[f"1-n, {CONVE_QUERIES} x {ENTITIES:,}"] = partial(
        one_to_many, device, half, CONVE_QUERIES, ENTITIES, CONVE_WIDTH
    )
    cases["interval attention, 128 x 200"] = partial(intervals, device, half, buckets, WIDTH)
    guide = made_graph("guide")
    cases[f"edge attention, {2 * len(guide.head):,} edges"] = partial(
        edges, device, half, guide, 8, 32
    )
    found = {}
    for name, build in cases.items():
        case = build()
        floor = max(case.flops / limits["flops"], case.moved_bytes / limits["bytes"])
        timed = {
            how: _milliseconds(operation, case.leaves)
            for how, operation in (
                ("kernels", case.kernels),
                ("present", case.present),
                ("plain", case.plain),
            )
        }
        ours = timed["kernels"]
        took = ours and (ours["graph_ms"] or ours["ms"])
        share = 1e3 * floor / took if took else None
        found[name] = {**timed, "floor_ms": 1e3 * floor, "share_of_roofline": share}
    passed = all(each["kernels"] is not None for each in found.values())
    return {"passed": passed, "ceilings": limits, "times": found}


def cross_entropy(
    device: torch.device, kind: torch.dtype, queries: int, rows: int, width: int
) -> Case:
    x, table, bias = _draw(device, kind, (queries, width), (rows, width), (rows,))
    targets = torch.arange(queries, device=device) * 7919 % rows

    def kernels(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        from hasten.ops.triton.cross_entropy import cross_entropy as of

        return of(x, [table], targets, bias, None, kind, residual_scale(kind))

    def present(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        size = catalog_loss.CHUNK_BYTES_DEVICE
        return catalog_loss.catalog_cross_entropy(x, [table], targets, bias, size)

    def plain(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return F.cross_entropy(x @ table.T + bias, targets, reduction="sum")

    return Case([x, table, bias], kernels, present, plain, *_least(queries, rows, width))


def one_to_many(
    device: torch.device, kind: torch.dtype, queries: int, rows: int, width: int
) -> Case:
    x, table, bias = _draw(device, kind, (queries, width), (rows, width), (rows,))
    row = torch.arange(queries, device=device).repeat_interleave(ANSWERS)
    item = torch.arange(queries * ANSWERS, device=device) * 7919 % rows

    def kernels(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        from hasten.ops.triton.one_to_many import one_to_many as of

        return of(x, [table], row, item, bias, SMOOTHING, kind, residual_scale(kind))

    def present(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        size, args = one_to_many_loss.CHUNK_BYTES_DEVICE, (row, item, bias, SMOOTHING, 1.0)
        return one_to_many_loss.one_to_many_loss(x, [table], *args, size)

    def plain(x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        scores = x @ table.T + bias
        labels = torch.full_like(scores, SMOOTHING / rows)
        labels[row, item] += 1 - SMOOTHING
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")

    return Case([x, table, bias], kernels, present, plain, *_least(queries, rows, width))


def intervals(
    device: torch.device, kind: torch.dtype, buckets: Sequence[Bucket], width: int
) -> Case:
    tokens = buckets[-1].stop
    shapes = [(tokens, width)] * 3 + [(SPAN + 1, width)] * 2
    leaves = _draw(device, kind, *shapes)
    times = torch.arange(tokens, device=device) * 7919 % (2 * SPAN)
    weights = torch.linspace(-1, 1, tokens, device=device)[:, None]

    def kernels(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        from hasten.ops.triton.interval_attention import interval_attention as of

        return (of(q, k, v, keys, values, times, buckets, 1, 0.0) * weights).sum()

    def present(*leaves: Tensor) -> Tensor:
        found = find_intervals(times, buckets, SPAN)
        out: Tensor = _IntervalAttention.apply(  # type: ignore[no-untyped-call]
            *leaves, found, 1, 0.0
        )
        return (out * weights).sum()

    def plain(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        out = interval_attention_reference(q, k, v, keys, values, times, buckets, 1)
        return (out * weights).sum()

    pairs = sum(each.rows * each.length * (each.length + 1) // 2 for each in buckets)
    # 2 products of pairs forward and 5 backward, and 6 with the tables
    flops = 14 * pairs * width + 12 * tokens * (SPAN + 1) * width
    moved = 8 * tokens * width * kind.itemsize + 4 * 2 * tokens * (SPAN + 1) * 4
    return Case(leaves, kernels, present, plain, flops, moved)


def hub(nodes: int, links: int) -> MadeGraph:
    """One relation; a third of the links ends at a node."""
    generator = np.random.default_rng(0)
    head, tail = generator.integers(nodes, size=(2, links))
    tail[::3] = 0
    zeros = np.zeros(links, np.int64)
    return MadeGraph(np.array([nodes]), np.zeros((1, 2), np.int64), head, zeros, tail)


def edges(device: torch.device, kind: torch.dtype, made: MadeGraph, heads: int, size: int) -> Case:
    nodes, relations, width = int(made.sizes.sum()), len(made.both_ends), heads * size
    shapes = [(nodes, width), (nodes, 2 * width), (relations, 2 * heads, size, size)]
    leaves = _draw(device, kind, *shapes)
    source, relation, target, _ = made.messages()
    typed = TypedEdges.build(source, relation, target, (nodes, nodes))
    pairs, by_hand = to_device((typed.pairs(segments=True), Edges.of(made)), device)
    weights = torch.linspace(-1, 1, nodes, device=device)[:, None]

    def attended(kernels: bool, *leaves: Tensor) -> Tensor:
        out: Tensor = _PairAttention.apply(  # type: ignore[no-untyped-call]
            pairs, None, heads, pairs.segments if kernels else None, *leaves
        )
        return (out * weights).sum()

    def plain(query: Tensor, key_value: Tensor, maps: Tensor) -> Tensor:
        prior = maps.new_full((relations, heads), size**0.5)  # the scale is in the maps
        return (attend(by_hand, query, key_value, maps, prior) * weights).sum()

    rows, count = len(pairs.source), len(source)
    flops = 12 * rows * width * size + 12 * count * width
    # leaves, output and their gradients; slots and destinations of the edges, each twice
    moved = 2 * kind.itemsize * (sum(each.numel() for each in leaves) + nodes * width) + 32 * count
    return Case(leaves, partial(attended, True), partial(attended, False), plain, flops, moved)


def _least(queries: int, rows: int, width: int) -> tuple[float, float]:
    """Three products; x and table in 2 bytes are read once, gradients of float32 written."""
    return 6.0 * queries * rows * width, 6.0 * (queries + rows) * width


def _draw(device: torch.device, kind: torch.dtype, *shapes: Any) -> list[Tensor]:
    """Random leaves, rounded to this type; the scores of their products are about 1."""
    generator = torch.Generator(device).manual_seed(0)
    return [
        (torch.randn(shape, device=device, generator=generator) / shape[-1] ** 0.25).to(kind)
        for shape in shapes
    ]


def _results(operation: Operation, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The value and the gradients of all leaves."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    value = operation(*leaves)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp_min(1e-12))


def _milliseconds(operation: Operation, leaves: Sequence[Tensor]) -> dict[str, float | None] | None:
    """The median of several passes and the peak memory; None if memory does not suffice.

    graph_ms: of the same kernels in a CUDA graph, without the host's part of launching them; None
    where they cannot be recorded.
    """
    torch.cuda.reset_peak_memory_stats()
    try:
        usual = _median_ms(partial(_results, operation, leaves))
        peak = torch.cuda.max_memory_allocated() / 2**20
        return {"ms": usual, "graph_ms": _graph_ms(operation, leaves), "peak_mib": peak}
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None


def _graph_ms(operation: Operation, leaves: Sequence[Tensor]) -> float | None:
    graphs, run = CudaGraphs(leaves[0].device), partial(_results, operation, leaves)
    graphs.warm_up(run)
    try:
        replay, _ = graphs.record(run)
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError:  # it waits for the device or copies from the host
        return None
    return _median_ms(replay)


def _median_ms(run: Callable[[], object]) -> float:
    times = []
    for number in range(9):
        begin, end = events()
        begin.record()
        run()
        end.record()
        end.synchronize()
        if number >= 2:  # the first pass compiles
            times.append(begin.elapsed_time(end))
    return float(median(times))


def events() -> tuple[Any, Any]:
    begin: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return begin, torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def ceilings(device: torch.device) -> dict[str, float]:
    """FLOP/s of a large product in bf16 and bytes/s of a copy, measured here."""
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    source, target = (torch.empty(1 << 28, device=device) for _ in range(2))
    seconds = []
    runs: Sequence[Callable[[], Tensor]] = (lambda: a @ a, lambda: target.copy_(source))
    for run in runs:
        times = []
        for _ in range(10):
            begin, end = events()
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        seconds.append(min(times))
    return {"flops": 2 * 8192**3 / seconds[0], "bytes": 2 * 4 * 2**28 / seconds[1]}
