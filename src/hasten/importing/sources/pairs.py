"""BPR-MF and LightGCN of RecBole and of LightGCN's authors, KGAT in PyTorch, MMRec's models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from hasten.data.tables import AnyDataset
from hasten.errors import CheckpointError
from hasten.importing.rows import Table
from hasten.importing.source import Source, Weights, count_blocks
from hasten.models.collaborative.kgat import KGAT
from hasten.models.interface import Model

#: the tables of users and items, and the rows of padding before them
_PAIRS = {
    "RecBole": ("user_embedding.weight", "item_embedding.weight", 1),
    "the authors' code": ("embedding_user.weight", "embedding_item.weight", 0),
}
_LAYERS = {"model.layers": "the number of propagation layers is not in the weights"}


def _of_pairs(title: str, model: str, names: tuple[str, str, int]) -> Source:
    user, item, padding = names

    def tables(weights: Weights) -> list[Table]:
        return [
            Table("users", len(weights[user]), padding),
            Table("items", len(weights[item]), padding),
        ]

    def convert(
        weights: Weights, rows: Mapping[str, Tensor], _model: Model, _dataset: AnyDataset
    ) -> dict[str, Tensor]:
        users, items = weights[user][rows["users"]], weights[item][rows["items"]]
        if model == "bprmf":
            return {"users.weight": users, "items.weight": items}
        return {"nodes.weight": torch.cat([items, users])}

    return Source(
        title,
        model,
        (user.replace(".", r"\."), item.replace(".", r"\.")),
        lambda weights: {"model.width": weights[user].shape[1]},
        {} if model == "bprmf" else _LAYERS,
        tables,
        convert,
    )


BPR, LIGHTGCN, LIGHTGCN_AUTHORS = (
    _of_pairs("BPR of RecBole", "bprmf", _PAIRS["RecBole"]),
    _of_pairs("LightGCN of RecBole", "lightgcn", _PAIRS["RecBole"]),
    _of_pairs("LightGCN of the authors' code", "lightgcn", _PAIRS["the authors' code"]),
)

_NODES = "entity_user_embed.weight"
_LAYER = r"aggregator_layers\.(\d+)\."


def _linears(weights: Weights, number: int) -> list[str]:
    names = [f"aggregator_layers.{number}.{name}" for name in ("linear1", "linear2", "linear")]
    return [name for name in names if f"{name}.weight" in weights]


def _kgat_settings(weights: Weights) -> dict[str, Any]:
    count = count_blocks(weights, _LAYER)
    firsts = [weights[f"{_linears(weights, n)[0]}.weight"] for n in range(count)]
    width = weights[_NODES].shape[1]
    joined = "graphsage" if firsts[0].shape[1] == 2 * width else "gcn"
    return {
        "model.width": width,
        "model.relation_width": weights["relation_embed.weight"].shape[1],
        "model.layers": ",".join(str(len(first)) for first in firsts),
        "model.aggregator": "bi-interaction" if len(_linears(weights, 0)) == 2 else joined,
        "model.slope": 0.01,
    }


def _kgat_tables(weights: Weights) -> list[Table]:
    nodes = len(weights[_NODES])
    kinds = len(weights["relation_embed.weight"])
    return [
        Table("users", nodes),
        Table("entities", nodes),
        Table("relations", (kinds - 2) // 2),
    ]


def _kgat_nodes(weights: Weights, rows: Mapping[str, Tensor]) -> Tensor:
    """The row of every node: entities, then users, which follow the entities there too."""
    nodes = len(weights[_NODES])
    first = nodes - int(rows["users"].max()) - 1
    if len(rows["entities"]) > first or int(rows["entities"].max()) >= first:
        raise CheckpointError(
            f"the weights have {nodes:,} rows for entities and users together, the data "
            f"{len(rows['entities']):,} entities and users up to row {int(rows['users'].max())}: "
            "they do not fit, or the last users of the weights are not in the data"
        )
    return torch.cat([rows["entities"], rows["users"] + first])


def _kgat(
    weights: Weights, rows: Mapping[str, Tensor], _model: Model, _dataset: AnyDataset
) -> dict[str, Tensor]:
    """Relations: a user's item, its inverse, the facts' relations, their inverses, as here."""
    picked = rows["relations"] + 2
    count = (len(weights["relation_embed.weight"]) - 2) // 2
    kinds = torch.cat([torch.tensor([0, 1]), picked, picked + count])
    converted = {
        "nodes.weight": weights[_NODES][_kgat_nodes(weights, rows)],
        "relations.weight": weights["relation_embed.weight"][kinds],
        "projections": weights["trans_M"][kinds],
    }
    for number in range(count_blocks(weights, _LAYER)):
        pairs = zip(_linears(weights, number), ("first", "second"), strict=False)
        for source_name, name in pairs:
            for part in ("weight", "bias"):
                converted[f"layers.{number}.{name}.{part}"] = weights[f"{source_name}.{part}"]
    return converted


@torch.no_grad()
def _attention(weights: Weights, rows: Mapping[str, Tensor], model: Model) -> None:
    """Take the attention A of the weights; where edges share a pair of nodes, in equal parts."""
    kgat = cast(KGAT, model)
    attention = weights.get("A_in")
    if attention is None or not attention.is_sparse:
        kgat.refresh()
        return
    assert kgat.graph is not None
    nodes, attention = _kgat_nodes(weights, rows), attention.coalesce()
    sizes = torch.diff(kgat.graph.offsets.cpu().long())
    head = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    count = attention.shape[1]
    keys = nodes[head] * count + nodes[kgat.graph.columns.cpu().long()]
    known = attention.indices()[0] * count + attention.indices()[1]
    place = torch.searchsorted(known, keys).clamp(max=len(known) - 1)
    distinct = len(torch.unique(keys))
    if bool((known[place] != keys).any()) or distinct != int((attention.values() != 0).sum()):
        raise CheckpointError(
            f"the graph of the weights has {len(known):,} edges, that of the data {distinct:,}, "
            "and they are not the same: the training part, the facts or the rows are others"
        )
    _, which, shared = torch.unique(keys, return_inverse=True, return_counts=True)
    kgat.set_attention((attention.values()[place] / shared[which]).float())


KGAT_TORCH = Source(
    "KGAT in PyTorch",
    "kgat",
    (
        r"entity_user_embed\.weight",
        r"relation_embed\.weight",
        "trans_M",
        r"aggregator_layers\.\d+\.linear[12]?\.(weight|bias)",
        "A_in",
    ),
    _kgat_settings,
    {},
    _kgat_tables,
    _kgat,
    _attention,
)
KGAT_RECBOLE = Source(
    "KGAT of RecBole",
    "kgat",
    (
        r"user_embedding\.weight",
        r"entity_embedding\.weight",
        r"relation_embedding\.weight",
        r"trans_w\.weight",
        r"aggregator_layers\.\d+\.W[12]?\.(weight|bias)",
    ),
    refusal="its graph has the facts in one direction only and one relation for both directions of "
    "an interaction; KGAT here has inverse relations with maps of their own, which these weights "
    "do not hold. Train kgat on the same data",
)
MMGCN_MMREC = Source(
    "MMGCN of MMRec",
    "mmgcn",
    (r"[vt]_gcn\..+",),
    refusal="it keeps the embeddings of ids and users outside of its parameters, so the file does "
    "not hold them, and without them no score can be computed again. Train mmgcn on the same data",
)
DRAGON_MMREC = Source(
    "DRAGON of MMRec",
    "dragon",
    (r"weight_u", r"(v|t)_gcn\..+", r"(image|text)_embedding\.weight", r".*"),
    refusal="it draws the neighbors of users with fewer than 40 of them anew in every epoch and "
    "does not save them, so no score can be computed again. Train dragon on the same data",
)
