"""Ranking of triples: filtered ranking of their heads and tails, in knowledge and typed graphs.

A triple (h, r, t) gives two queries: its tail given (h, r), and its head given (r, t), which is the
tail of (t, r + R) with the reciprocal relation. Other known answers of a query in train, valid and
test are not candidates (the filtered setting of Bordes et al. 2013); without
``evaluation.filter_test``, those in test are candidates of validation. All triples and both
directions have the same weight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import EvaluationOptions
from hasten.data.columns.checks import counted
from hasten.data.graph_store.mapped import MappedGraph, triple_blocks
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, KnowledgeGraph
from hasten.evaluation.candidate_ranges import ranges_of
from hasten.evaluation.metrics import Ties
from hasten.evaluation.other_libraries import peer_words
from hasten.objectives.triple_queries import group_queries, known_answers
from hasten.ops.graph.csr import CSR
from hasten.scoring import TripleQueries


@dataclass(frozen=True)
class CompletionProtocol:
    """How a metric was measured. Metrics are comparable only if their protocols are equal.

    items: the number of entities; misses: the number of targets ranked last; typed: the candidates
    are the entities of the type that the relation leads to; leaks: the number of triples that
    follow from a training triple by an inverse relation; filtered: the parts whose triples are no
    candidates; like: the library whose protocol this is, or "" (``peer_words``); sampled_queries:
    the number of triples that are ranked if they are a sample.
    """

    split: str
    part: str
    items: int
    ties: Ties = "realistic"
    misses: int = 0
    typed: bool = False
    leaks: int = 0
    filtered: str = "train, valid and test"
    like: str = ""
    sampled_queries: int | None = None

    def text(self) -> str:
        """The description that is reported with every metric."""
        among = f"{self.items:,} entities"
        if self.typed:
            among = f"the entities of the wanted type ({self.items:,} of all types)"
        words = (
            f"{self.split}, filtered ranking of {among} by {self.filtered}, "
            f"heads and tails, mean of triples and directions, {self.ties} ties"
        )
        if self.sampled_queries is not None:
            words += f", a sample of {counted(self.sampled_queries, 'triple')}"
        if self.misses:
            words += f", triples unseen in train ranked last ({self.misses:,} of {self.part})"
        if self.leaks:
            words += f", {self.leaks:,} triples of {self.part} with an inverse in train"
        return words + self.like


@dataclass(frozen=True, eq=False)
class CompletionTask:
    """Queries, their targets and excluded answers, as in RankingTask.

    rank_last: bool [S], targets that count as misses: an entity or relation of their triple is
    unseen in training. triple: int64 [S], the triple of the part.
    range_start, range_stop: int64 [Q], the range of candidates of each query; None: all entities.
    """

    queries: TripleQueries
    targets: CSR
    excluded: CSR
    protocol: CompletionProtocol
    rank_last: NDArray[np.bool_]
    triple: Int64
    candidates: None = None
    masked: Literal[True] = True
    range_start: Int64 | None = None
    range_stop: Int64 | None = None

    @property
    def item_count(self) -> int:
        """The number of entities."""
        return self.protocol.items

    @property
    def offsets(self) -> Int64:
        """[S + 1] one target per group, so that every target has the same weight in the mean."""
        return np.arange(len(self.targets.items) + 1, dtype=np.int64)

    @property
    def triples(self) -> int:
        """The number of triples, each of them in two queries."""
        return len(self.triple) // 2

    def of_triples(self, chosen: Int64) -> CompletionTask:
        """The task of some of the triples of the part; known answers are those of all."""
        is_chosen = np.zeros(self.triples, bool)
        is_chosen[chosen] = True
        is_kept = is_chosen[self.triple]
        targets = self.targets.keep(is_kept)
        query_rows = np.flatnonzero(targets.lengths > 0)
        return replace(
            self,
            queries=self.queries.take(query_rows),
            targets=targets.take(query_rows),
            excluded=self.excluded.take(query_rows),
            protocol=replace(self.protocol, sampled_queries=len(chosen)),
            rank_last=self.rank_last[is_kept],
            triple=self.triple[is_kept],
            range_start=None if self.range_start is None else self.range_start[query_rows],
            range_stop=None if self.range_stop is None else self.range_stop[query_rows],
        )

    def competitors(self, masked: bool = True) -> Int64:
        """[S] the number of other candidates of each target; ``excluded`` holds all targets."""
        among: Int64 | int = self.item_count
        if self.range_start is not None and self.range_stop is not None:
            among = self.range_stop - self.range_start
        return np.repeat(among - self.excluded.lengths, self.targets.lengths)


def completion_task(
    graph: KnowledgeGraph, part: int, options: EvaluationOptions, chosen: Int64 | None = None
) -> CompletionTask:
    """The link-prediction task of VALID or TEST. It has no queries if the part is empty.

    chosen: a sample of the triples of the part, ascending; None: all.
    """
    assert part in (VALID, TEST)
    entities, relations = len(graph.entities), len(graph.relations)
    held_out = graph.of(part)
    if isinstance(graph, MappedGraph):
        is_last = np.zeros(len(held_out), bool)
    else:
        is_last = graph.rank_last[graph.part == part]
    sampled = None
    if chosen is not None and len(chosen) < len(held_out):
        held_out, is_last, sampled = held_out.take(chosen), is_last[chosen], len(chosen)
    grouped = group_queries(held_out, relations, entities)
    filtering, words = triple_blocks(graph), CompletionProtocol.filtered
    if part == VALID and not options.filter_test:
        filtering, words = triple_blocks(graph, TRAIN, VALID), "train and valid"
    excluded = known_answers(filtering, relations, grouped.queries, entities)
    rank_last = is_last[grouped.triple]
    misses, name = int(rank_last.sum()), PART_NAMES[part]
    leaks = graph.source.counts.get(f"inverse_leaks_in_{name}", 0)
    protocol = CompletionProtocol(
        graph.split,
        name,
        entities,
        options.ties,
        misses,
        graph.typed,
        leaks,
        words,
        peer_words(options.like, graph.split),
        sampled,
    )
    start, stop = ranges_of(graph, grouped.queries.relation) or (None, None)
    return CompletionTask(
        grouped.queries,
        grouped.targets,
        excluded,
        protocol,
        rank_last,
        grouped.triple,
        range_start=start,
        range_stop=stop,
    )
