"""Judging the completion of knowledge graphs: both directions, filtered.

A triple (h, r, t) of the part is asked twice: for its tail among all entities given (h, r), and for
its head given (r, t), which is the tail of (t, r + R) with the reciprocal relation. Entities that
complete the same question in any of train, valid and test do not compete (Bordes et al. 2013,
"filtered"). Every triple and direction counts alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import EvaluationOptions
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import PART_NAMES, TEST, VALID, KnowledgeGraph
from hasten.evaluation.metrics import Ties
from hasten.objectives.triple_queries import known_answers, questions_of
from hasten.ops.graph.csr import CSR
from hasten.scoring import TripleQueries


@dataclass(frozen=True)
class CompletionProtocol:
    """How a number came about.

    items: entities that compete; misses: targets ranked last; typed: only entities of the type
    that the relation leads to compete.
    """

    split: str
    part: str
    items: int
    ties: Ties = "realistic"
    misses: int = 0
    typed: bool = False

    def text(self) -> str:
        """The words that travel with every number of a run, validation or test."""
        among = f"{self.items:,} entities"
        if self.typed:
            among = f"the entities of the wanted type ({self.items:,} of all types)"
        words = (
            f"{self.split}, filtered ranking of {among} by train, valid and test, "
            f"heads and tails, mean of triples and directions, {self.ties} ties"
        )
        if self.misses:
            words += f", triples unseen in train ranked last ({self.misses:,} of {self.part})"
        return words

    def same_as(self, other: object) -> bool:
        """Whether numbers under both may be compared."""
        return self == other


@dataclass(frozen=True, eq=False)
class CompletionTask:
    """Queries with their targets, and the answers that do not compete (as a RankingTask).

    last: bool [T], targets that count as misses. triple: int64 [T], the triple of the part.
    first, end: int64 [Q], the span of the entities that may answer a query; None: all of them.
    """

    queries: TripleQueries
    targets: CSR
    excluded: CSR
    protocol: CompletionProtocol
    last: NDArray[np.bool_]
    triple: Int64
    candidates: None = None
    first: Int64 | None = None
    end: Int64 | None = None

    @property
    def items(self) -> int:
        """Entities that compete."""
        return self.protocol.items

    @property
    def offsets(self) -> Int64:
        """[T + 1] what counts as one in the mean: every target."""
        return np.arange(len(self.targets.items) + 1, dtype=np.int64)

    @property
    def competitors(self) -> Int64:
        """[T] how many entities compete with each target; all its targets are excluded."""
        among: Int64 | int = self.items
        if self.first is not None and self.end is not None:
            among = self.end - self.first
        return np.repeat(among - self.excluded.lengths, self.targets.lengths)


def completion_task(graph: KnowledgeGraph, part: int, options: EvaluationOptions) -> CompletionTask:
    """The task of completing the triples of VALID or TEST; without queries where there are none."""
    assert part in (VALID, TEST)
    entities, relations = len(graph.entities), len(graph.relations)
    judged = graph.of(part)
    asked = questions_of(judged, relations, entities)
    excluded = known_answers(graph.triples, relations, asked.queries, entities)
    last = graph.rank_last[graph.part == part][asked.triple]
    protocol = CompletionProtocol(
        graph.split, PART_NAMES[part], entities, options.ties, int(last.sum()), graph.typed
    )
    first = end = None
    if graph.typed:
        types = NodeTypes.of(graph)
        wanted = np.concatenate([types.target, types.source])[asked.queries.relation]
        first, end = types.offsets[wanted], types.offsets[wanted + 1]
    return CompletionTask(
        asked.queries, asked.targets, excluded, protocol, last, asked.triple, first=first, end=end
    )
