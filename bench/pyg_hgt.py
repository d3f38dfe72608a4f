"""PyTorch Geometric's HGTConv as pip installs it, without pyg-lib: a layer, its edges, an encoder.

Without pyg-lib ``HeteroLinear`` writes the rows of every type into one tensor, slice by slice, and
autograd copies the whole gradient once a slice: with 30 edge types and 8 heads 240 copies.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bench.link_step import HEADS, HIDDEN, LAYERS, WIDTH
from bench.made_graph import MadeGraph
from bench.plain_hgt import take

EdgeType = tuple[str, str, str]
Edges = Mapping[EdgeType, Tensor]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn import HGTConv
    from torch_geometric.utils.hetero import construct_bipartite_edge_index


def edges_of(made: MadeGraph) -> tuple[list[str], Edges, dict[EdgeType, Tensor]]:
    """Names of node types, edges [2, E] numbered within their types, and the link of each edge."""
    names = [f"t{number}" for number in range(len(made.sizes))]
    source, relation, target, link = made.messages()
    edges, links = {}, {}
    for r, (s, t) in enumerate(made.both_ends.tolist()):
        mine = relation == r
        kind = names[s], f"r{r}", names[t]
        edges[kind] = torch.stack(
            [
                torch.from_numpy(source[mine] - made.offsets[s]),
                torch.from_numpy(target[mine] - made.offsets[t]),
            ]
        )
        links[kind] = torch.from_numpy(link[mine])
    return names, edges, links


def edge_part(
    conv: Any, query: Tensor, key: Tensor, value: Tensor, sizes: Any, edges: Edges
) -> Any:
    """What HGTConv does between the maps of nodes: [M, H·d] from tables of all nodes."""
    heads = conv.heads
    q, k, v = (
        dict(
            zip(
                conv.node_types,
                torch.split(table.view(len(table), heads, -1), sizes),
                strict=True,
            )
        )
        for table in (query, key, value)
    )
    joined, offsets = conv._cat(q)
    k_rows, v_rows, source_offsets = conv._construct_src_node_feat(k, v, edges)
    index, prior = construct_bipartite_edge_index(
        edges, source_offsets, offsets, edge_attr_dict=conv.p_rel, num_nodes=len(k_rows)
    )
    return conv.propagate(index, k=k_rows, q=joined, v=v_rows, edge_attr=prior)


class PyGHGT(nn.Module):
    """The encoder of :mod:`bench.link_step` with layers of HGTConv, over all nodes."""

    def __init__(self, made: MadeGraph) -> None:
        super().__init__()
        names, self.edges, self.links = edges_of(made)
        sizes = dict(zip(names, made.sizes.tolist(), strict=True))
        self.inputs = nn.ParameterDict(
            {name: torch.randn(size, HIDDEN) * 0.1 for name, size in sizes.items()}
        )
        meta = (names, list(self.edges))
        self.layers = nn.ModuleList(
            HGTConv(HIDDEN, HIDDEN, meta, heads=HEADS) for _ in range(LAYERS)
        )
        self.norms = nn.ModuleDict(
            {f"{name}_{n}": nn.LayerNorm(HIDDEN) for name in names for n in range(LAYERS)}
        )
        self.result = nn.Linear(HIDDEN, WIDTH)

    def forward(self, keep: Tensor, wanted: Tensor) -> Tensor:
        edges = {kind: pairs[:, keep[self.links[kind]]] for kind, pairs in self.edges.items()}
        x = dict(self.inputs.items())
        for n, layer in enumerate(self.layers):
            found = layer(x, edges)
            # a type that nothing leads to keeps its vectors
            x = {name: self.norms[f"{name}_{n}"](found.get(name, rows)) for name, rows in x.items()}
        rows: Tensor = self.result(take(torch.cat(list(x.values())), wanted))
        return rows
