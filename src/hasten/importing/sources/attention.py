"""SASRec and TiSASRec of the PyTorch ports, and of RecBole.

The ports pad histories on the left, so that the last item always has the last position; here
position 0 is the last item. The biases of keys have no effect on a softmax, and those of values add
to the output, since its weights sum to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hasten.data.tables import AnyDataset, Dataset
from hasten.importing.rows import Table
from hasten.importing.source import Source, Weights, count_blocks
from hasten.models.interface import Model

_BLOCK = (
    r"attention_layernorms\.\d+\.(weight|bias)",
    r"forward_layernorms\.\d+\.(weight|bias)",
    r"forward_layers\.\d+\.conv[12]\.(weight|bias)",
    r"last_layernorm\.(weight|bias)",
)
_ASKS = {
    "model.heads": "the number of attention heads is not in the weights",
    "model.norm": "whether layer norm comes before (pre) or after (post) a sublayer, or before "
    "queries only (query: the first version of the port), is not in the weights",
}


def _settings(weights: Weights, positions: str) -> dict[str, Any]:
    items, table = weights["item_emb.weight"], weights[positions]
    # later versions count positions from 1 and keep row 0 for padding
    first = int(positions == "pos_emb.weight" and not bool(table[0].any()))
    return {
        "model.width": items.shape[1],
        "model.max_length": len(table) - first,
        "model.blocks": count_blocks(weights, r"forward_layernorms\.(\d+)\."),
        "model.norm_eps": 1e-8,
    }


def _items(weights: Weights) -> list[Table]:
    return [Table("items", len(weights["item_emb.weight"]), padding=1)]


def _from_the_end(table: Tensor, length: int) -> Tensor:
    """Rows of positions, the last first, without a row of padding."""
    return table[-length:].flip(0)


def _block(weights: Weights, number: int) -> dict[str, Tensor]:
    """What both models share in a block: norms and feed-forward network."""
    converted = {}
    for source_name, name in (
        (f"attention_layernorms.{number}", "attention_norm"),
        (f"forward_layernorms.{number}", "feedforward_norm"),
        (f"forward_layers.{number}.conv1", "inner"),
        (f"forward_layers.{number}.conv2", "outer"),
    ):
        for part in ("weight", "bias"):
            each = weights[f"{source_name}.{part}"]
            # a convolution of width 1 is a linear map
            converted[f"blocks.{number}.{name}.{part}"] = (
                each.flatten(1) if each.ndim == 3 else each
            )
    return converted


def _common(weights: Weights, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    converted = {
        "items.weight": weights["item_emb.weight"][rows["items"]],
        "final_norm.weight": weights["last_layernorm.weight"],
        "final_norm.bias": weights["last_layernorm.bias"],
    }
    for number in range(count_blocks(weights, r"forward_layernorms\.(\d+)\.")):
        converted |= _block(weights, number)
    return converted


def _sasrec(
    weights: Weights, rows: Mapping[str, Tensor], model: Model, _dataset: AnyDataset
) -> dict[str, Tensor]:
    converted = _common(weights, rows)
    converted["positions.weight"] = _from_the_end(
        weights["pos_emb.weight"], model.options.max_length
    )
    width = model.options.width
    for number in range(model.options.blocks):
        source_block, block = f"attention_layers.{number}", f"blocks.{number}"
        query, _, value = weights[f"{source_block}.in_proj_bias"].view(3, width)
        output = weights[f"{source_block}.out_proj.weight"]
        converted |= {
            f"{block}.query_key_value": weights[f"{source_block}.in_proj_weight"],
            f"{block}.query_bias": query,
            f"{block}.output.weight": output,
            f"{block}.output.bias": weights[f"{source_block}.out_proj.bias"] + output @ value,
        }
    return converted


def _tisasrec(
    weights: Weights, rows: Mapping[str, Tensor], model: Model, _dataset: AnyDataset
) -> dict[str, Tensor]:
    converted = _common(weights, rows)
    length = model.options.max_length
    for theirs, ours in (("K", "key"), ("V", "value")):
        converted[f"{ours}_positions.weight"] = _from_the_end(
            weights[f"abs_pos_{theirs}_emb.weight"], length
        )
        converted[f"{ours}_intervals.weight"] = weights[f"time_matrix_{theirs}_emb.weight"]
    for number in range(model.options.blocks):
        theirs, ours = f"attention_layers.{number}", f"blocks.{number}"
        maps = [weights[f"{theirs}.{name}_w.weight"] for name in "QKV"]
        converted |= {
            f"{ours}.query_key_value": torch.cat(maps),
            f"{ours}.query_bias": weights[f"{theirs}.Q_w.bias"],
            f"{ours}.output.weight": torch.eye(model.options.width),  # the port has no such map
            f"{ours}.output.bias": weights[f"{theirs}.V_w.bias"],
        }
    return converted


def _tisasrec_settings(weights: Weights) -> dict[str, Any]:
    span = len(weights["time_matrix_K_emb.weight"]) - 1
    return {**_settings(weights, "abs_pos_K_emb.weight"), "model.span": span}


def _padded(
    _weights: Weights, _rows: Mapping[str, Tensor], dataset: AnyDataset, model: Model
) -> str | None:
    """The port attends to the padding of short histories, each position with its own vector."""
    assert isinstance(dataset, Dataset)
    longest = model.options.max_length
    short = int((dataset.histories(0, 1).lengths < longest).sum())
    if not short:
        return None
    return (
        f"{short:,} of {len(dataset.users):,} users have fewer than {longest} events; the port "
        "attends to the padding before them, at each position with another vector, and hasten "
        "attends to no padding, so their scores differ"
    )


SASREC = Source(
    "SASRec of the PyTorch port",
    "sasrec",
    (
        r"item_emb\.weight",
        r"pos_emb\.weight",
        r"attention_layers\.\d+\.in_proj_(weight|bias)",
        r"attention_layers\.\d+\.out_proj\.(weight|bias)",
        *_BLOCK,
    ),
    partial(_settings, positions="pos_emb.weight"),
    {
        **_ASKS,
        "model.padding": "whether padding is masked as a key (masked) or not (keys: the port, "
        "which sets padding to zero before each block) is not in the weights",
    },
    _items,
    _sasrec,
)
TISASREC = Source(
    "TiSASRec of the PyTorch port",
    "tisasrec",
    (
        r"item_emb\.weight",
        r"abs_pos_[KV]_emb\.weight",
        r"time_matrix_[KV]_emb\.weight",
        r"attention_layers\.\d+\.[QKV]_w\.(weight|bias)",
        *_BLOCK,
    ),
    _tisasrec_settings,
    _ASKS,
    _items,
    _tisasrec,
    inexact=_padded,
)
RECBOLE_SASREC = Source(
    "SASRec of RecBole",
    "sasrec",
    (
        r"item_embedding\.weight",
        r"position_embedding\.weight",
        r"trm_encoder\.layer\.\d+\..+",
        r"LayerNorm\.(weight|bias)",
    ),
    refusal="it counts positions from the first item of a history, normalizes the embedded input, "
    "uses GELU and has no final layer norm; SASRec here has none of these, so no choice of options "
    "gives its scores. Train sasrec on the same data (hasten train sasrec DATA --like recbole)",
)
