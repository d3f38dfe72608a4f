"""A small data set with facts in KGAT's layout, and KGAT as its equations read, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.config import KnowledgeOptions
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.tables import Dataset
from hasten.models.collaborative.kgat import KGAT
from hasten.ops.graph.collaborative_graph import CollaborativeGraph

TRAIN = "0 0 1 2 3 4 5\n1 1 2 6\n2 3 7 8 0 9\n3 4\n"
TEST = "0 6 7\n1 0\n2 4 5\n3 8\n"
#: items 0..9 (item 9 has no facts), entities to 15
KG = "".join(
    f"{line}\n"
    for line in (
        *("0 0 10", "1 0 10", "2 0 11", "3 1 12", "4 1 12", "5 2 13", "6 0 11", "7 2 14"),
        *("8 1 12", "10 2 15", "11 2 15", "0 1 12", "0 0 10"),
    )
)


def write_layout(folder: Path) -> Path:
    """The files, without lists."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("train.txt", TRAIN), ("test.txt", TEST), ("kg_final.txt", KG)):
        (folder / name).write_text(content)
    return folder


def small_dataset(folder: Path, valid_share: float = 0.1) -> Dataset:
    options = KnowledgeOptions(path=str(write_layout(folder)), valid_share=valid_share)
    return load_knowledge(options, 0)


def dense_attention(graph: CollaborativeGraph, values: Tensor) -> Tensor:
    """[nodes, nodes] the sum of the weights of all edges between two nodes."""
    dense = torch.zeros(graph.nodes, graph.nodes, dtype=torch.float64)
    for h, t, value in zip(graph.head.tolist(), graph.tail.tolist(), values.tolist(), strict=True):
        dense[h, t] += value
    return dense


def naive_vectors(model: KGAT, dense: Tensor) -> Tensor:
    """[nodes, D + D1 + ...] without dropout."""
    options = model.options
    e = model.nodes.weight
    found: list[Tensor] = [e]
    for layer in model.layers:
        n = dense @ e
        first = layer.first
        if options.aggregator == "graphsage":
            e = F.leaky_relu(first(torch.cat([e, n], 1)), options.slope)
        elif options.aggregator == "gcn":
            e = F.leaky_relu(first(e + n), options.slope)
        else:
            second = layer.second
            e = F.leaky_relu(first(e + n), options.slope) + F.leaky_relu(
                second(e * n), options.slope
            )
        found.append(e / e.norm(dim=1, keepdim=True))
    return torch.cat(found, 1)


def naive_pair_loss(vectors: Tensor, triples: Sequence[tuple[int, int, int]], l2: float) -> Tensor:
    """Mean over (user node, positive, negative)."""
    total = vectors.new_zeros(())
    for u, i, j in triples:
        margin = vectors[u] @ vectors[j] - vectors[u] @ vectors[i]
        norms = sum((vectors[k] ** 2).sum() for k in (u, i, j))
        total = total + F.softplus(margin) + l2 * norms / 2
    return total / len(triples)


def naive_translation_loss(
    model: KGAT, edges: Sequence[tuple[int, int, int, int]], l2: float
) -> Tensor:
    """Mean over (head, relation, tail, other)."""
    nodes, total = model.nodes.weight, model.nodes.weight.new_zeros(())
    for h, r, t, o in edges:
        matrix, vector = model.projections[r], model.relations.weight[r]
        head, tail, other = nodes[h] @ matrix, nodes[t] @ matrix, nodes[o] @ matrix
        near = ((head + vector - tail) ** 2).sum()
        far = ((head + vector - other) ** 2).sum()
        norms = sum((v**2).sum() for v in (head, tail, other, vector))
        total = total + F.softplus(near - far) + l2 * norms / 2
    return total / len(edges)
