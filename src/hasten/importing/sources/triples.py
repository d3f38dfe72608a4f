"""DistMult, ComplEx and ConvE: of PyKEEN, and ConvE of the scripts that follow the paper's code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hasten.data.tables import AnyDataset
from hasten.importing.rows import Table
from hasten.importing.source import Source, Weights
from hasten.models.interface import Model

_ENTITIES = "entity_representations.0._embeddings.weight"
_RELATIONS = "relation_representations.0._embeddings.weight"
_PYKEEN = (
    r"entity_representations\.0\._embeddings\.weight",
    r"relation_representations\.0\._embeddings\.weight",
)
_UNTRAINED = (
    "the weights have one row for each relation and none for its inverse, so queries for heads "
    "(?, r, t) have no trained relation: tails are predicted as before, heads are not"
)


#: the other libraries rank the entity of the query too
_RANKS_ALL = {"model.exclude_self": "false"}


def _tables(weights: Weights) -> list[Table]:
    return [
        Table("entities", len(weights[_ENTITIES])),
        Table("relations", len(weights[_RELATIONS])),
    ]


def _width(weights: Weights) -> dict[str, Any]:
    return {"model.width": weights[_ENTITIES].shape[1], **_RANKS_ALL}


def _distmult(
    weights: Weights, rows: Mapping[str, Tensor], model: Model, _dataset: AnyDataset
) -> dict[str, Tensor]:
    """The score is symmetric, so the inverse of a relation has its vector."""
    relations = weights[_RELATIONS][rows["relations"]]
    return {
        "entities.weight": weights[_ENTITIES][rows["entities"]],
        "relations.weight": torch.cat([relations, relations]),
        "bias": torch.zeros(model.sizes.entities),
    }


def _complex(
    weights: Weights, rows: Mapping[str, Tensor], model: Model, _dataset: AnyDataset
) -> dict[str, Tensor]:
    """The inverse of a relation is its complex conjugate. PyKEEN interleaves both parts."""

    def parts(table: Tensor) -> tuple[Tensor, Tensor]:
        if table.is_complex():
            return table.real, table.imag
        return table[:, ::2], table[:, 1::2]

    real, imaginary = parts(weights[_RELATIONS][rows["relations"]])
    forth, back = torch.cat([real, imaginary], 1), torch.cat([real, -imaginary], 1)
    return {
        "entities.weight": torch.cat(parts(weights[_ENTITIES][rows["entities"]]), 1),
        "relations.weight": torch.cat([forth, back]),
        "bias": torch.zeros(model.sizes.entities),
    }


DISTMULT = Source("DistMult of PyKEEN", "distmult", _PYKEEN, _width, {}, _tables, _distmult)
COMPLEX = Source("ComplEx of PyKEEN", "complex", _PYKEEN, _width, {}, _tables, _complex)

_HEIGHT = {
    "model.height": "the rows H of the image of an embedding are not in the weights (the paper's "
    "code: 20 for width 200; PyKEEN: 10). The relation's image must lie below the head's"
}
#: the tensors of a ConvE by their role, in the paper's code and in PyKEEN
_ROLES = {
    "entities": ("emb_e.weight", _ENTITIES),
    "relations": ("emb_rel.weight", _RELATIONS),
    "image_norm": ("bn0", "interaction.hr2d.0"),
    "convolution": ("conv1", "interaction.hr2d.2"),
    "feature_norm": ("bn1", "interaction.hr2d.3"),
    "linear": ("fc", "interaction.hr1d.0"),
    "hidden_norm": ("bn2", "interaction.hr1d.2"),
    "bias": ("b", "entity_representations.1._embeddings.weight"),
}


def _role(weights: Weights, role: str, part: str = "") -> Tensor:
    names = (name + ("." + part if part else "") for name in _ROLES[role])
    return next(weights[name] for name in names if name in weights)


def _conve_settings(weights: Weights) -> dict[str, Any]:
    filters = _role(weights, "convolution", "weight")
    return {
        "model.width": _role(weights, "entities").shape[1],
        "model.channels": len(filters),
        "model.kernel": filters.shape[-1],
        **_RANKS_ALL,
    }


def _script_tables(weights: Weights) -> list[Table]:
    return [
        Table("entities", len(weights["emb_e.weight"])),
        Table("relations", len(weights["emb_rel.weight"]), inverses=True),
    ]


def _pykeen_tables(weights: Weights) -> list[Table]:
    return [
        Table("entities", len(weights[_ENTITIES])),
        Table("relations", len(weights[_RELATIONS]) // 2),
    ]


def _conve(
    weights: Weights, rows: Mapping[str, Tensor], _model: Model, _dataset: AnyDataset
) -> dict[str, Tensor]:
    """Biases before a batch norm move its mean; gain and shift of the first move into the filters.

    The relations of PyKEEN are interleaved with their inverses. Those of the paper's code have
    their inverses behind them (row r + R), or none.
    """
    table, picked = _role(weights, "relations"), rows["relations"]
    if _RELATIONS in weights:
        relations = torch.cat([table[2 * picked], table[2 * picked + 1]])
    else:
        back = table[picked] if _inverses_missing(table, picked) else table[picked + len(picked)]
        relations = torch.cat([table[picked], back])
    taps = _role(weights, "convolution", "weight")[:, 0].flatten(1)
    gain, shift = (_role(weights, "image_norm", part) for part in ("weight", "bias"))
    moved = _role(weights, "convolution", "bias") + shift * taps.sum(1)
    converted = {
        "entities.weight": _role(weights, "entities")[rows["entities"]],
        "relations.weight": relations,
        "bias": _role(weights, "bias").flatten()[rows["entities"]],
        "filters": gain * taps,
        "hidden.weight": _role(weights, "linear", "weight"),
        "image_moments.mean": _role(weights, "image_norm", "running_mean"),
        "image_moments.variance": _role(weights, "image_norm", "running_var"),
        "feature_moments.mean": _role(weights, "feature_norm", "running_mean") - moved,
        "feature_moments.variance": _role(weights, "feature_norm", "running_var"),
        "hidden_moments.mean": _role(weights, "hidden_norm", "running_mean")
        - _role(weights, "linear", "bias"),
        "hidden_moments.variance": _role(weights, "hidden_norm", "running_var"),
    }
    for name in ("feature", "hidden"):
        converted[f"{name}_gain"] = _role(weights, f"{name}_norm", "weight")
        converted[f"{name}_shift"] = _role(weights, f"{name}_norm", "bias")
    return converted


def _inverses_missing(table: Tensor, picked: Tensor) -> bool:
    return len(table) != 2 * len(picked) or bool((picked >= len(picked)).any())


def _no_inverses(
    weights: Weights, rows: Mapping[str, Tensor], _dataset: AnyDataset, _model: Model
) -> str | None:
    missing = _inverses_missing(weights["emb_rel.weight"], rows["relations"])
    return _UNTRAINED if missing else None


_NORM = r"\.(weight|bias|running_mean|running_var|num_batches_tracked)"
CONVE = Source(
    "ConvE of the paper's code",
    "conve",
    (
        r"emb_e\.weight",
        r"emb_rel\.weight",
        "b",
        *(rf"bn{number}{_NORM}" for number in range(3)),
        r"conv1\.(weight|bias)",
        r"fc\.(weight|bias)",
    ),
    _conve_settings,
    _HEIGHT,
    _script_tables,
    _conve,
    inexact=_no_inverses,
)
PYKEEN_CONVE = Source(
    "ConvE of PyKEEN",
    "conve",
    (
        *_PYKEEN,
        r"entity_representations\.1\._embeddings\.weight",
        rf"interaction\.hr2d\.0{_NORM}",
        r"interaction\.hr2d\.2\.(weight|bias)",
        rf"interaction\.hr2d\.3{_NORM}",
        r"interaction\.hr1d\.0\.(weight|bias)",
        rf"interaction\.hr1d\.2{_NORM}",
    ),
    _conve_settings,
    _HEIGHT,
    _pykeen_tables,
    _conve,
)
