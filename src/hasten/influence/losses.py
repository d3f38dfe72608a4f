"""Training and test examples as batches of their training objective.

An example's negatives are a function of (seed, epoch 0, example): a training example has those of
the run's first epoch; those of a test example follow from its triple, or from its number.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, Histories, KnowledgeGraph, Triples
from hasten.influence.events import EventTerms
from hasten.influence.example_blocks import cut
from hasten.influence.triples import Answers
from hasten.objectives.base import Batch
from hasten.objectives.completion import CompletionMicroBatch, CompletionPhase
from hasten.objectives.next_item import NextItemMicroBatch, NextItemPhase
from hasten.objectives.triple_examples import KvsAllExamples, TripleExamples
from hasten.objectives.triple_queries import both_directions
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, key


class TripleLosses:
    """The training triples ``kept`` (int64 rows), and test triples: two terms each."""

    def __init__(
        self,
        phase: CompletionPhase,
        graph: KnowledgeGraph,
        tests: Triples,
        chosen: Int64,
        seed: int,
    ) -> None:
        assert isinstance(phase.data, KvsAllExamples | TripleExamples)
        self.data, self.given, self.seed = phase.data, tests, seed
        self.relations, self.entities = len(graph.relations), len(graph.entities)
        self.answers = Answers.build(graph)
        train = graph.of(TRAIN)
        self.triples = train.take(chosen)
        if isinstance(self.data, KvsAllExamples):  # a term is a query with all its answers
            entity, relation, _ = both_directions(self.triples, self.relations)
            row = np.searchsorted(self.answers.keys, relation * self.entities + entity)
        else:
            row = np.concatenate([chosen, chosen + len(train)])
        self.rows, term = np.unique(row, return_inverse=True)
        weight = next(phase.module.parameters())
        self.device, self.dtype = weight.device, weight.dtype
        self.terms, self.tests = len(self.rows), len(tests)
        self.terms_of = torch.from_numpy(term.reshape(2, -1)).to(self.device)

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        return cut(self.terms, rows)

    def batch_of(self, terms: Int64) -> tuple[CompletionMicroBatch, Tensor]:
        """These training terms: a batch, and int64 [n] which of its losses are theirs."""
        rows = self.rows[terms]
        of = Batch(torch.from_numpy(rows), self.seed, 0, 0, {"examples": 1.0})
        return self.data.batch(of, rows, self.device), torch.arange(len(rows), device=self.device)

    def test_batch(self, start: int, stop: int) -> tuple[CompletionMicroBatch, Tensor]:
        """Some tests: the first term of each, then the second of each."""
        triples = self.given.take(np.arange(start, stop))
        entity, relation, target = both_directions(triples, self.relations)
        known = self.answers.of(entity, relation, target)
        query_entities, answer = self._to(entity), self._to(target)
        batch = CompletionMicroBatch(query_entities, self._to(relation), target=answer)
        if isinstance(self.data, KvsAllExamples):
            pairs = self._to(known.rows), self._to(known.items)
            batch = replace(batch, target=None, answer_query=pairs[0], answer=pairs[1])
        elif self.data.negatives:
            items = KnownItems.build(known.rows, known.items, len(entity), self.entities)
            count = self.data.negatives
            example = (batch.relation * self.entities + query_entities) * self.entities + answer
            counters = example[:, None] * count + torch.arange(count, device=self.device)
            row = torch.arange(len(entity), device=self.device)[:, None]
            base = key(self.seed, Stream.NEGATIVES, 0)
            sampled = negatives(items.to(self.device), row, base, counters)
            batch = replace(batch, negatives=sampled)
        return batch, torch.arange(len(entity), device=self.device)

    def _to(self, values: Int64) -> Tensor:
        return torch.from_numpy(values).to(self.device)


class EventLosses(EventTerms):
    """Training interactions, and test interactions: ``targets`` after ``histories``.

    items: the size of the catalog.
    """

    def __init__(
        self,
        phase: NextItemPhase,
        histories: Histories,
        targets: Int64,
        chosen: Int64,
        seed: int,
        items: int,
    ) -> None:
        super().__init__(phase, chosen)
        self.seed, self.tests = seed, len(targets)
        if self.tests:
            self.test_phase = NextItemPhase(
                phase.model,
                _appended(histories, targets),
                item_count=items,
                batch_size=phase.batch_size,
                max_length=phase.max_length,
                negative_count=phase.negative_count,
            )

    def batch_of(self, terms: Int64) -> tuple[NextItemMicroBatch, Tensor]:
        return self.batch(int(terms[0]), int(terms[-1]) + 1, self.seed)

    def test_batch(self, start: int, stop: int) -> tuple[NextItemMicroBatch, Tensor]:
        lengths = self.test_phase.target_counts[start:stop]
        order = np.argsort(-lengths, kind="stable")
        rows = start + order
        batch = self.test_phase.build_micro_batch(
            Batch(torch.from_numpy(rows), self.seed, 0, 0), rows
        )
        last = np.empty(len(rows), np.int64)
        last[order] = np.cumsum(lengths[order]) - 1
        return batch, torch.from_numpy(last).to(self.device)


def _appended(histories: Histories, targets: Int64) -> Histories:
    """The histories with one more item each, whose time no model reads: it is only a target."""
    ends = histories.offsets[1:]
    times = histories.times
    return Histories(
        histories.offsets + np.arange(len(histories.offsets)),
        np.insert(histories.items, ends, targets),
        None if times is None else np.insert(times, ends, times[ends - 1]),
    )
