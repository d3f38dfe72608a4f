"""The baseline for HGT: PyTorch Geometric's HGTConv, and the guide's training step with it.

Without pyg-lib ``HeteroLinear`` writes the rows of every type into one tensor, slice by slice, and
autograd copies the whole gradient once a slice: with 30 edge types and 8 heads 240 copies, which is
minutes a pass. :func:`fair` puts one product a type, joined at the end, in its place: the same
numbers.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EdgeType = tuple[str, str, str]
Edges = Mapping[EdgeType, Tensor]

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.nn import HGTConv
    from torch_geometric.nn.dense.linear import HeteroLinear
    from torch_geometric.utils.hetero import construct_bipartite_edge_index


def fair() -> None:
    """Replace what PyG does without pyg-lib by one product a type."""

    def one_product_a_type(self: Any, x: Tensor, type_ptr: Tensor) -> Tensor:
        parts = torch.split(x, type_ptr.diff().tolist())
        products = [part @ weight for part, weight in zip(parts, self.weight, strict=True)]
        return torch.cat(products)

    HeteroLinear.forward_naive = one_product_a_type


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


class GuideModel(nn.Module):
    """The guide's model: a constant a type, layers of HGTConv with ReLU, a linear map at the end.

    sizes: nodes of each type; edges: [2, E] of each edge type, numbered within the types.
    """

    def __init__(self, sizes: Mapping[str, int], edges: Edges, hidden: int, width: int) -> None:
        super().__init__()
        self.sizes, self.edges = sizes, edges
        self.inputs = nn.ModuleDict({name: nn.Linear(1, hidden) for name in sizes})
        meta = (list(sizes), list(edges))
        self.layers = nn.ModuleList(HGTConv(hidden, hidden, meta, heads=8) for _ in range(2))
        self.result = nn.Linear(hidden, width)

    def forward(self) -> dict[str, Tensor]:
        """[N_t, width] of every type: a pass over the whole graph."""
        x = {name: self.inputs[name](torch.ones(size, 1)) for name, size in self.sizes.items()}
        for layer in self.layers:
            found = layer(x, self.edges)
            # a type that nothing leads to keeps its vectors
            x = {
                name: rows if found.get(name) is None else F.relu(found[name])
                for name, rows in x.items()
            }
        return {name: self.result(rows) for name, rows in x.items()}

    def loss(self, edges: Edges) -> Tensor:
        """Links against as many uniform pairs, by the dot product; a pass of its own."""
        z = self()
        total = torch.zeros(())
        for (source, _, target), pairs in edges.items():
            ends = (z[source], z[target])
            near = (ends[0][pairs[0]] * ends[1][pairs[1]]).sum(-1)
            drawn = [torch.randint(len(rows), (pairs.shape[1],)) for rows in ends]
            far = (ends[0][drawn[0]] * ends[1][drawn[1]]).sum(-1)
            total = total + F.softplus(-near).mean() + F.softplus(far).mean()
        return total / len(edges)


def guide_step(
    model: GuideModel, optimiser: torch.optim.Optimizer, sample: int, passes: int
) -> float:
    """One optimiser step of the guide: the sampled edges in shares, each with a whole pass."""
    optimiser.zero_grad()
    drawn = {
        kind: pairs[:, torch.randperm(pairs.shape[1])[:sample]]
        for kind, pairs in model.edges.items()
    }
    total = 0.0
    shares: Sequence[Edges] = [
        {kind: pairs.tensor_split(passes, 1)[number] for kind, pairs in drawn.items()}
        for number in range(passes)
    ]
    for share in shares:
        loss = model.loss(share) / passes
        torch.autograd.backward(loss)
        total += loss.item()
    optimiser.step()
    return total
