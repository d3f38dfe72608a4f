"""A typed graph whose triples, links and messages are in memory-mapped files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.graph.messages import IntArray, Links, Messages, blocks
from hasten.data.graph.node_types import GraphWithTypes, NodeTypes
from hasten.data.graph_store import manifest
from hasten.data.graph_store.features import map_features
from hasten.data.graph_store.manifest import GraphManifest
from hasten.data.store_folder.files import map_column, map_vocabulary
from hasten.data.tables import PART_NAMES, KnowledgeGraph, Source, Triples


class MappedGraph(GraphWithTypes):
    """The graph of a store. Processes of a machine that map it share one copy in the page cache.

    ``triples``, ``part`` and ``rank_last`` of all triples are not in the files as the class it
    extends has them: they are made in memory when first used. HGT does not use them when its steps
    encode neighborhoods.
    """

    def __init__(self, folder: Path, stored: GraphManifest, notes: tuple[str, ...]) -> None:
        files = tuple({k: s[k] for k in ("name", "sha256", "bytes")} for s in stored.sources)
        names = (manifest.ENTITIES, manifest.RELATIONS)
        entities, relations = (map_vocabulary(folder / name) for name in names)
        source = Source("store", stored.path, files, dict(stored.counts), notes)
        values = {"name": stored.name, "entities": entities, "relations": relations}
        values |= {"split": stored.split, "source": source, "typed": True}
        values["features"] = map_features(folder, stored.features)
        values |= {"folder": folder, "manifest": stored, "types": _types(stored)}
        for name, value in values.items():  # the class it extends is frozen
            object.__setattr__(self, name, value)

    folder: Path
    manifest: GraphManifest

    def _column(self, name: str) -> IntArray:
        is_long = f"{name}.i8" in self.manifest.files
        path = self.folder / f"{name}.{'i8' if is_long else 'i4'}"
        column: IntArray = map_column(path, np.int64 if is_long else np.int32)
        return column

    @cached_property
    def links(self) -> Links:
        """The links of the training part, mapped."""
        head, tail = map(self._column, manifest.LINKS)
        return Links(head, tail, np.array(self.manifest.link_bounds, np.int64))

    @cached_property
    def messages(self) -> Messages:
        """The messages of the training part, mapped."""
        columns: dict[str, Any] = {name: self._column(name) for name in manifest.MESSAGES}
        return Messages(**columns, bounds=np.array(self.manifest.message_bounds, np.int64))

    @cached_property
    def endpoints(self) -> tuple[IntArray, Int64]:
        """The endpoints of links sorted by node, and the offsets of each node, mapped."""
        order, offsets = map(self._column, manifest.ENDPOINTS)
        return order, offsets.astype(np.int64, copy=False)

    @cached_property
    def mapped_triples(self) -> tuple[IntArray, IntArray, IntArray]:
        """Heads, relations and tails of all triples, mapped: train before valid before test."""
        head, relation, tail = map(self._column, manifest.TRIPLES)
        return head, relation, tail

    @cached_property
    def triples(self) -> Triples:
        """All triples in memory."""
        return Triples(*(column.astype(np.int64) for column in self.mapped_triples))

    @cached_property
    def part(self) -> NDArray[np.int8]:
        """int8 [n] the part of each triple."""
        return np.repeat(np.arange(3, dtype=np.int8), self.sizes)

    @cached_property
    def rank_last(self) -> NDArray[np.bool_]:
        """Bool [n]: none."""
        return np.zeros(sum(self.sizes), bool)

    @property
    def sizes(self) -> list[int]:
        """The number of triples of train, valid and test."""
        return [self.manifest.counts[name] for name in PART_NAMES]

    def holds(self, part: int) -> bool:
        """Whether any triple is in this part."""
        return bool(self.sizes[part])

    def _range(self, part: int) -> tuple[IntArray, IntArray, IntArray]:
        first, size = sum(self.sizes[:part]), self.sizes[part]
        head, relation, tail = (c[first : first + size] for c in self.mapped_triples)
        return head, relation, tail

    def of(self, *parts: int) -> Triples:
        """The triples of the given parts, in memory."""
        ranges = [self._range(part) for part in sorted(parts)]
        columns = (np.concatenate(each).astype(np.int64) for each in zip(*ranges, strict=True))
        return Triples(*columns)

    def blocks(self, *parts: int) -> Iterator[Triples]:
        """The triples of the given parts in blocks, of which one is in memory at a time."""
        for part in sorted(parts):
            yield from blocks(Triples(*self._range(part)))  # type: ignore[arg-type]

    @property
    def trained(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which entities and which relations occur in a training triple."""
        entities = np.diff(self.messages.offsets) > 0
        return entities, np.diff(self.links.bounds) > 0

    def in_memory(self) -> KnowledgeGraph:
        """The same data in memory, for what reads all triples anyway."""
        return KnowledgeGraph(
            self.name, self.entities, self.relations, self.triples, self.part, self.split,
            self.source, self.rank_last, self.typed, self.features,
        )  # fmt: skip

    @property
    def reopening(self) -> dict[str, Any]:
        """What ``dataset.json`` holds to open the store again."""
        return {"kind": "graph store"}

    @property
    def fingerprint(self) -> str:
        """Of the triples and their parts."""
        text = f"hasten stored graph 1\n{self.manifest.fingerprint}\n{self.sizes}\n"
        return hashlib.sha256(text.encode()).hexdigest()


def triple_blocks(graph: KnowledgeGraph, *parts: int) -> Iterator[Triples]:
    """The triples of the given parts, or of all, in blocks."""
    if isinstance(graph, MappedGraph):
        return graph.blocks(*(parts or range(len(PART_NAMES))))
    return blocks(graph.of(*parts) if parts else graph.triples)


def _types(stored: GraphManifest) -> NodeTypes:
    """The types of nodes and relations that the manifest holds."""
    lists = dict(stored.types)
    symmetric = np.array(lists.pop("symmetric"), bool)
    names = tuple(lists.pop("names"))
    arrays = {name: np.array(values, np.int64) for name, values in lists.items()}
    return NodeTypes(names, symmetric=symmetric, **arrays)
