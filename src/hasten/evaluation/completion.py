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

from hasten.config import EvaluationOptions
from hasten.data.graph import KnowledgeGraph
from hasten.data.tables import PART_NAMES, TEST, VALID, Int64
from hasten.errors import ConfigurationError
from hasten.evaluation.metrics import Ties
from hasten.models.questions import known_answers, questions_of
from hasten.models.seam import TripleQueries
from hasten.ops.csr import CSR


@dataclass(frozen=True)
class CompletionProtocol:
    """How a number came about. items: entities that compete; misses: targets ranked last."""

    split: str
    part: str
    items: int
    ties: Ties = "realistic"
    misses: int = 0

    def text(self) -> str:
        """The words that travel with every number of a run, validation or test."""
        words = (
            f"{self.split}, filtered ranking of {self.items:,} entities by train, valid and test, "
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
    """

    queries: TripleQueries
    targets: CSR
    excluded: CSR
    protocol: CompletionProtocol
    last: NDArray[np.bool_]
    triple: Int64
    candidates: None = None

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
        return np.repeat(self.items - self.excluded.lengths, self.targets.lengths)


def completion_task(graph: KnowledgeGraph, part: int, options: EvaluationOptions) -> CompletionTask:
    """The task of completing the triples of VALID or TEST; without queries where there are none.

    Raises:
        ConfigurationError: options that are for recommendations.
    """
    assert part in (VALID, TEST)
    if options.candidates != "full":
        raise ConfigurationError(
            "evaluation.candidates=uni100 is for users and items: in a knowledge graph all "
            "entities compete"
        )
    if options.mask_history:
        raise ConfigurationError(
            "evaluation.mask_history has no effect on knowledge graphs, whose known answers never "
            "compete: leave it out"
        )
    if options.users != "all":
        raise ConfigurationError("evaluation.users is for users and items: leave it out")
    entities, relations = len(graph.entities), len(graph.relations)
    judged = graph.of(part)
    asked = questions_of(judged, relations, entities)
    excluded = known_answers(graph.triples, relations, asked.queries, entities)
    last = graph.rank_last[graph.part == part][asked.triple]
    protocol = CompletionProtocol(
        graph.split, PART_NAMES[part], entities, options.ties, int(last.sum())
    )
    return CompletionTask(asked.queries, asked.targets, excluded, protocol, last, asked.triple)
