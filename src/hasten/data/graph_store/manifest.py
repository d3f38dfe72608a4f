"""What the folder of a store of a typed graph holds.

Every column is a file of int32 (``.i4``), or of int64 (``.i8``) where its numbers are too large:
triples (head, relation, tail) with train before valid before test, and the arrays of
:mod:`hasten.data.graph.messages` of the training part. Node features: see :mod:`.features`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hasten.data.store_folder import manifest
from hasten.data.store_folder.manifest import Manifest

ENTITIES, RELATIONS = "entities.arrow", "relations.arrow"
TRIPLES = ("head", "relation", "tail")
LINKS = ("link_head", "link_tail")
MESSAGES = ("source", "target", "link", "by_target", "offsets")
ENDPOINTS = ("endpoints", "endpoint_offsets")


@dataclass(frozen=True)
class GraphManifest(Manifest):
    """The manifest of a store of a typed graph.

    split: the description of how the parts were made; types: the fields of ``NodeTypes`` as lists;
    message_bounds, link_bounds: the first message and link of each relation; queries: the number of
    distinct (entity, relation) of the training triples, in both directions; features: type, file,
    shape and digest of the node features.
    """

    split: str
    types: dict[str, list[Any]]
    message_bounds: list[int]
    link_bounds: list[int]
    queries: int
    features: list[dict[str, Any]] = field(default_factory=list)
    kind: ClassVar[str] = "hasten typed graph"


def holds_graph_store(folder: Path) -> bool:
    """Whether a folder is a store of a typed graph."""
    return manifest.holds_store(folder, GraphManifest)
