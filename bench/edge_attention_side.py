"""A layer of HGT on a made graph of the guide's size, forward and backward.

    python -m bench.edge_attention_side --how hasten --threads 2

66,903 nodes of 10 types, 200,000 edges of 30 types, 512 -> 256, 8 heads. An "epoch" of the report
is one pass. ``--part edges``: from queries, keys and values to what every node gathers, without the
linear maps of nodes. ``pyg``: HGTConv as pip installs it (:mod:`bench.pyg_hgt`); ``plain``: plain
PyTorch (:mod:`bench.plain_hgt`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from bench.made_graph import MadeGraph, made_graph
from bench.report import Stopwatch, print_report

WIDTH, OUT, HEADS = 512, 256, 8


def hasten(made: MadeGraph, x: Tensor, part: str) -> Callable[[], Tensor]:
    from hasten.models.typed_graph.hgt_layer import HGTLayer
    from hasten.ops.attention.edge_attention import edge_attention
    from hasten.ops.graph.typed_edges import TypedEdges

    layer = HGTLayer(len(made.sizes), len(made.both_ends), WIDTH, OUT, HEADS)
    source, relation, target, _ = made.messages()
    edges = TypedEdges.build(source, relation, target, (len(x), len(x)))
    if part == "layer":
        counts = tuple(made.sizes.tolist())
        return lambda: layer(edges, x, counts)
    query, key_value = rows_of(x, 1, 2)
    return lambda: edge_attention(edges, query, key_value, layer.attention, layer.message)


def plain(made: MadeGraph, x: Tensor, part: str) -> Callable[[], Tensor]:
    from bench.plain_hgt import Edges, PlainHGTLayer, attend

    layer = PlainHGTLayer(len(made.sizes), len(made.both_ends), WIDTH, OUT, HEADS)
    edges, bounds = Edges.of(made), made.offsets.tolist()
    if part == "layer":
        return lambda: layer(edges, x, bounds, x, bounds)
    query, keys_values = rows_of(x, 1, 2)
    return lambda: attend(edges, query, keys_values, layer.maps, layer.prior)


def pyg(made: MadeGraph, x: Tensor, part: str) -> Callable[[], Tensor]:
    from torch_geometric.nn import HGTConv

    from bench.pyg_hgt import edge_part, edges_of

    names, edges, _ = edges_of(made)
    conv = HGTConv(WIDTH, OUT, (names, list(edges)), heads=HEADS)
    counts = made.sizes.tolist()

    def layer() -> Tensor:
        found = conv(dict(zip(names, torch.split(x, counts), strict=True)), edges)
        return torch.cat(list(found.values()))

    if part == "layer":
        return layer
    query, key, value = rows_of(x, 1, 1, 1)
    return lambda: edge_part(conv, query, key, value, counts, edges)


def rows_of(x: Tensor, *widths: int) -> list[Tensor]:
    """A table of every node for each width, counted in OUT."""
    return [torch.randn(len(x), width * OUT, requires_grad=True) for width in widths]


SIDES = {"hasten": hasten, "plain": plain, "pyg": pyg}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=tuple(SIDES))
    parser.add_argument("--part", default="layer", choices=("layer", "edges"))
    parser.add_argument("--steps", type=int, default=3, help="passes that are measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of nodes and edges")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    made = made_graph("guide", options.scale)
    x = torch.randn(int(made.sizes.sum()), WIDTH, requires_grad=True)
    run = SIDES[options.how](made, x, options.part)
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
        examples_per_epoch=2 * len(made.head),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=float(result.detach().square().mean()),
    )


if __name__ == "__main__":
    main()
