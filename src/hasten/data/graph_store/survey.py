"""Third pass: which relations are symmetric, and how many links each range of nodes has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.graph.typed_links import Mask, mark_symmetric
from hasten.data.graph_store.edges import Edges
from hasten.data.graph_store.link_ranges import LinkRange
from hasten.data.store_folder.buckets import Buckets
from hasten.data.tables import PART_NAMES, TRAIN

LOW, HIGH = "link.low", "link.high"


@dataclass(eq=False)
class Survey:
    """What holds for all edges.

    counts: int64 [ranges, R] links, whose ends are in the scratch files LOW and HIGH by range and
    relation; symmetric: [R]; entity, relation: which stand in an edge of a training file; present:
    which parts the files have edges of; turned, repeated: as of :class:`LinkRange`.
    """

    counts: Int64
    symmetric: Mask
    entity: Mask
    relation: Mask
    present: Mask = field(default_factory=lambda: np.zeros(len(PART_NAMES), bool))
    turned: int = 0
    repeated: int = 0


@dataclass(eq=False)
class Directions:
    """Which relations have links, other than loops, and which of these in one direction only."""

    proper: Mask
    lacking: Mask

    @classmethod
    def of(cls, links: LinkRange, forward: Mask, backward: Mask, relations: int) -> Directions:
        """forward, backward: bool [L] the directions in which links have edges."""
        proper, lacking = np.zeros((2, relations), bool)
        real = (forward | backward) & ~links.loop
        proper[links.relation[real]] = True
        lacking[links.relation[real & (forward != backward)]] = True
        return cls(proper, lacking)

    def add(self, other: Directions) -> None:
        """Those of more links."""
        self.proper |= other.proper
        self.lacking |= other.lacking

    def symmetric(self, edges: Edges) -> Mask:
        """Relations within a type whose edges all occur in both directions."""
        within = edges.source == edges.target
        symmetric: Mask = within & self.proper & ~self.lacking
        return symmetric


def survey(
    buckets: Buckets,
    edges: Edges,
    parts: NDArray[np.int8] | None,
    symmetric: tuple[str, ...],
    report: Callable[[int, int], None],
) -> Survey:
    """Go through all edges. parts: of the files; symmetric: relations that have no direction.

    Raises DataError for relations that cannot be symmetric.
    """
    relations = len(edges.labels)
    none = np.zeros(relations, bool)
    whole = Survey(
        np.zeros((len(buckets), relations), np.int64), none, np.zeros(edges.nodes, bool),
        none.copy(),
    )  # fmt: skip
    directions = Directions(none.copy(), none.copy())

    def links_of(_: int, columns: list[NDArray[np.int64]]) -> LinkRange:
        return LinkRange.of(columns, edges, parts)

    done = 0
    with (edges.folder / LOW).open("wb") as low, (edges.folder / HIGH).open("wb") as high:
        for number, links in enumerate(buckets.map(links_of)):
            directions.add(Directions.of(links, links.forward_of, links.backward_of, relations))
            whole.counts[number] = np.bincount(links.relation, minlength=relations)
            whole.turned += links.turned
            whole.repeated += links.repeated
            whole.present[np.unique(links.part)] = True
            trained = np.unique(links.link[links.part == TRAIN])
            whole.entity[links.low[trained]] = whole.entity[links.high[trained]] = True
            whole.relation[links.relation[trained]] = True
            links.low.astype(np.int32).tofile(low)
            links.high.astype(np.int32).tofile(high)
            done += len(links.row) + links.repeated
            report(done, edges.count)
    whole.symmetric = directions.symmetric(edges)
    within = edges.source == edges.target
    mark_symmetric(whole.symmetric, within, edges.labels, symmetric)
    return whole
