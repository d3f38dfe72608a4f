"""HGT embeddings of scripts that use PyTorch Geometric's HGTConv on one constant input per type.

The model of the scripts: a linear map of an input of ones for each type (``lin_dict``), layers
``convs`` of HGTConv, each followed by ReLU, and a linear map to the embeddings (``lin``). The
weights name types and edge types, but not the order of the edge types' maps, which has to be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import AnyDataset, KnowledgeGraph
from hasten.errors import CheckpointError
from hasten.importing.rows import Table
from hasten.importing.source import Source, Weights, count_blocks
from hasten.models.interface import Model


def _edge_types(weights: Weights, conv: str) -> list[str]:
    """source__relation__target of each edge type."""
    prefix = f"{conv}.p_rel."
    return [name.removeprefix(prefix) for name in weights if name.startswith(prefix)]


def _settings(weights: Weights) -> dict[str, Any]:
    (first,) = (weights[f"convs.0.p_rel.{name}"] for name in _edge_types(weights, "convs.0")[:1])
    return {
        "model.width": len(weights["lin.weight"]),
        "model.hidden": weights["lin.weight"].shape[1],
        "model.layers": count_blocks(weights, r"convs\.(\d+)\."),
        "model.heads": first.shape[1],
        "model.inputs": "constant",
        "model.activation": "relu",
        "model.norm": "false",
        "model.decoder": "dot",
        "model.self_score": "false",
    }


def _tables(weights: Weights) -> list[Table]:
    known = tuple(_edge_types(weights, "convs.0"))
    return [Table("relations", len(known), labels=known)]


def _places(types: NodeTypes, labels: list[str], known: list[str]) -> Tensor:
    """int64 [2R] the place among the known edge types of every relation, then of its way back."""
    directions: tuple[list[int], list[int]] = ([], [])
    for label, source, target in zip(labels, types.source, types.target, strict=True):
        one, other = types.names[source], types.names[target]
        for places, names in (
            (directions[0], [f"{one}__{label}__{other}"]),
            (directions[1], [f"{other}__{label}__{one}", f"{other}__rev_{label}__{one}"]),
        ):
            if not (hit := [known.index(name) for name in names if name in known]):
                raise CheckpointError(
                    f"the weights have no edge type {' or '.join(names)}: hgt passes messages both "
                    f"ways along every relation of the data. They have {', '.join(known)}"
                )
            places.append(hit[0])
    return torch.tensor([*directions[0], *directions[1]])


def _hgt(
    weights: Weights, rows: Mapping[str, Tensor], model: Model, dataset: AnyDataset
) -> dict[str, Tensor]:
    """HGTConv joins keys, queries and values, and its maps stand by edge type within a head."""
    assert isinstance(dataset, KnowledgeGraph)
    types, labels = NodeTypes.of(dataset), dataset.relations.labels.to_pylist()
    if absent := [name for name in types.names if f"lin_dict.{name}.weight" not in weights]:
        raise CheckpointError(f"the weights have no node type {', '.join(absent)} of the data")

    def of_types(pattern: str) -> list[Tensor]:
        return [weights[pattern.format(name)] for name in types.names]

    constant = zip(of_types("lin_dict.{}.weight"), of_types("lin_dict.{}.bias"), strict=True)
    converted = {
        "inputs": torch.stack([weight[:, 0] + bias for weight, bias in constant]),
        "result.weight": weights["lin.weight"],
        "result.bias": weights["lin.bias"],
        "bias": torch.zeros(len(labels)),
    }
    for number in range(model.options.layers):
        conv, layer = f"convs.{number}", f"layers.{number}"
        known, heads = _edge_types(weights, conv), model.options.heads
        places = _places(types, labels, known)
        joined = [
            torch.stack(of_types(f"{conv}.kqv_lin.lins.{{}}.{p}")) for p in ("weight", "bias")
        ]
        parts = zip(("key", "query", "value"), *(x.chunk(3, dim=1) for x in joined), strict=True)
        for name, weight, bias in parts:
            converted |= {f"{layer}.{name}.weight": weight.mT, f"{layer}.{name}.bias": bias}
        result = torch.stack(of_types(f"{conv}.out_lin.lins.{{}}.weight"))
        converted[f"{layer}.result.weight"] = result.mT
        converted[f"{layer}.result.bias"] = torch.stack(of_types(f"{conv}.out_lin.lins.{{}}.bias"))
        for source_name, name in (("k_rel", "attention"), ("v_rel", "message")):
            maps = weights[f"{conv}.{source_name}.weight"]
            maps = maps.view(heads, len(known), *maps.shape[1:])
            converted[f"{layer}.{name}"] = maps[:, rows["relations"][places]].transpose(0, 1)
        priors = torch.cat([weights[f"{conv}.p_rel.{name}"] for name in known])
        converted[f"{layer}.prior"] = priors[places]
        converted[f"{layer}.skip"] = torch.cat(of_types(f"{conv}.skip.{{}}"))
    return converted


HGT_PYG = Source(
    "HGT with PyTorch Geometric's HGTConv",
    "hgt",
    (
        r"lin_dict\..+\.(weight|bias)",
        r"convs\.\d+\.(kqv|out)_lin\.lins\..+\.(weight|bias)",
        r"convs\.\d+\.[kv]_rel\.weight",
        r"convs\.\d+\.p_rel\..+",
        r"convs\.\d+\.skip\..+",
        r"lin\.(weight|bias)",
    ),
    _settings,
    tables=_tables,
    convert=_hgt,
)
