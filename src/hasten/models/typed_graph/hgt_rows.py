"""What the rows of HGT's weights stand for."""

from __future__ import annotations

from collections.abc import Collection

from hasten.models.rows import Rows

_BOTH = Rows.of("relations", "relations")
_PER_RELATION = {"attention": _BOTH, "message": _BOTH, "prior": _BOTH}


def hgt_rows(names: Collection[str], inputs: str, featured: bool) -> dict[str, Rows]:
    """The rows of these weights. featured: whether some node types have features."""
    input_kind = Rows.of("entities" if inputs == "embeddings" else "node_types")
    of_types = Rows.of("node_types", dim=1)
    known_weights = {
        "inputs": Rows.of("plain_nodes") if featured else input_kind,
        "shallow": Rows.of("entities"),
        "gains": of_types,
        "shifts": of_types,
        "relations": Rows.of("relations"),
        "bias": Rows.of("relations"),
        "selves": Rows.of("relations"),
    }
    rows_by_weight = {name: rows for name, rows in known_weights.items() if name in names}
    for name in names:
        if name.startswith("layers."):
            rows_by_weight[name] = _PER_RELATION.get(name.rpartition(".")[2], Rows.of("node_types"))
    return rows_by_weight
