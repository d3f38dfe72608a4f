"""A layer of HGT on a made graph of the guide's size: hasten, or PyTorch Geometric's HGTConv.

    python -m bench.edge_attention_side --how hasten --threads 2

66,903 nodes of 10 types, 200,000 edges of 30 types, 512 -> 256, 8 heads; forward and backward. An
"epoch" of the report is one pass. ``--part edges``: from queries, keys and values to what every
node gathers, without the linear maps of nodes. ``pyg`` has one product a type in place of what it
does without pyg-lib (:mod:`bench.pyg_hgt`), which is fair to it; ``pyg-as-shipped`` has not.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.report import Stopwatch, print_report

WIDTH, OUT, HEADS = 512, 256, 8


def made(nodes: int, edges: int, relations: int, types: int) -> tuple[Any, ...]:
    """Sizes of the types, the types at both ends of every relation, and the edges."""
    generator = np.random.default_rng(0)
    share = generator.dirichlet(np.full(types, 2.0))
    sizes = np.maximum(nodes // 1000 + 1, (share * nodes).astype(np.int64))
    sizes[np.argmax(sizes)] += nodes - sizes.sum()
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    ends = generator.integers(types, size=(relations, 2))
    each = edges // relations
    columns = [
        np.stack(
            [
                generator.integers(offsets[s], offsets[s + 1], each),
                np.full(each, r),
                generator.integers(offsets[t], offsets[t + 1], each),
            ]
        )
        for r, (s, t) in enumerate(ends.tolist())
    ]
    return sizes, offsets, ends, np.concatenate(columns, axis=1)


def ours(x: Tensor, sizes: Any, ends: Any, edges: Any, part: str) -> Callable[[], Tensor]:
    from hasten.models.typed_graph.hgt_layer import HGTLayer
    from hasten.ops.attention.edge_attention import edge_attention
    from hasten.ops.graph.typed_edges import TypedEdges

    layer = HGTLayer(len(sizes), len(ends), WIDTH, OUT, HEADS)
    source, relation, target = edges
    found = TypedEdges.build(source, relation, target, (len(x), len(x)))
    counts = tuple(sizes.tolist())
    if part == "layer":
        return lambda: layer(found, x, counts)
    tables = [torch.randn(len(x), OUT, requires_grad=True) for _ in range(3)]
    query, key, value = tables
    return lambda: edge_attention(found, query, key, value, layer.attention, layer.message)


def pyg(x: Tensor, sizes: Any, offsets: Any, ends: Any, edges: Any, part: str) -> Any:
    from torch_geometric.nn import HGTConv

    from bench.pyg_hgt import edge_part

    names = [f"t{number}" for number in range(len(sizes))]
    kinds = [(names[s], f"r{r}", names[t]) for r, (s, t) in enumerate(ends.tolist())]
    conv = HGTConv(WIDTH, OUT, (names, kinds), heads=HEADS)
    index = {}
    for r, (s, t) in enumerate(ends.tolist()):
        mine = edges[:, edges[1] == r]
        index[kinds[r]] = torch.from_numpy(np.stack([mine[0] - offsets[s], mine[2] - offsets[t]]))
    counts = sizes.tolist()

    def run() -> Tensor:
        found = conv(dict(zip(names, torch.split(x, counts), strict=True)), index)
        return torch.cat([rows for rows in found.values() if rows is not None])

    if part == "layer":
        return run
    query, key, value = (torch.randn(len(x), OUT, requires_grad=True) for _ in range(3))
    return lambda: edge_part(conv, query, key, value, counts, index)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "pyg", "pyg-as-shipped"))
    parser.add_argument("--part", default="layer", choices=("layer", "edges"))
    parser.add_argument("--steps", type=int, default=3, help="passes that are measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of nodes and edges")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    nodes, count = int(66_903 * options.scale), int(200_000 * options.scale)
    sizes, offsets, ends, edges = made(nodes, count, 30, 10)
    x = torch.randn(nodes, WIDTH, requires_grad=True)
    if options.how == "hasten":
        run = ours(x, sizes, ends, edges, options.part)
    else:
        if options.how == "pyg":
            from bench.pyg_hgt import fair

            fair()
        run = pyg(x, sizes, offsets, ends, edges, options.part)
    run().sum().backward()  # type: ignore[no-untyped-call]
    clock = Stopwatch()
    for _ in range(options.steps):
        result = run()
        result.square().mean().backward()  # type: ignore[no-untyped-call]
    wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=1,
        examples_per_epoch=count,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=float(result.detach().square().mean()),
    )


if __name__ == "__main__":
    main()
