"""Training examples of knowledge graphs: queries with all their answers, or single triples."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, KnowledgeGraph
from hasten.objectives.base import Batch
from hasten.objectives.completion import CompletionMicroBatch, Examples
from hasten.objectives.fixed_shapes import capacities, capacity, padded
from hasten.objectives.shared_negatives import Sample, SharedItems, SharedNegatives, masked_pairs
from hasten.objectives.triple_queries import both_directions, known_of_examples, training_queries
from hasten.ops.losses.catalog_targets import CatalogTargets, LabelPairs
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.permutations import LastValueCache
from hasten.ops.random import Stream, key, signed
from hasten.scoring import TripleQueries

#: the most answers that a batch is padded to, as a multiple of the mean: on FB15k-237 the longest
#: batch has 85,000 and the mean is 930; padded to the longest, ComplEx took 15 GB in place of 2.4
_LARGEST_CAPACITY = 4


class KvsAllExamples(Examples):
    """An example is an (entity, relation) with all its answers in the training part (KvsAll).

    softmax: the loss is a softmax over all entities, not 1-N binary cross-entropy.
    """

    no_capture_reason: str | None = "the number of answers differs between batches"

    def __init__(self, graph: KnowledgeGraph, softmax: bool = False) -> None:
        self.queries, self.answers = training_queries(graph)
        self.softmax, self.sizes = softmax, self.answers.lengths
        self.most_answers = float(self.answers.lengths.max(initial=0))
        #: (size of the batches whose answers are padded, possible lengths); None: no padding
        self.fixed: tuple[int, tuple[int, ...]] | None = None

    def __len__(self) -> int:
        return len(self.queries)

    def inputs(self, batch: Batch, ids: Int64) -> CompletionMicroBatch:
        queries, answers = self.queries.take(ids), self.answers.take(ids)
        query, answer = torch.from_numpy(answers.rows), torch.from_numpy(answers.items)
        made = CompletionMicroBatch(
            torch.from_numpy(queries.entity), torch.from_numpy(queries.relation), query, answer
        )
        if (size := self.capacity(len(ids), len(answer))) is not None:
            return self._padded(made, size)
        if self.softmax:
            targets = CatalogTargets.build(answer, query, len(ids))
            return replace(made, prepared_targets=targets)
        return replace(made, prepared_targets=LabelPairs.build(query, answer))

    def capacity(self, queries: int, answers: int) -> int | None:
        """The number of answers with padding, of a batch of so many queries; None: no padding."""
        if self.fixed is None or self.fixed[0] != queries or answers > self.fixed[1][-1]:
            return None
        return capacity(self.fixed[1], answers)

    def fix_shapes(self, batch_size: int) -> None:
        """Pad all batches but the few with far more answers than usual, taken as they are."""
        rows = min(batch_size, len(self))
        sizes = capacities(self.answers.lengths, rows)
        largest = _LARGEST_CAPACITY * self.answers.lengths.mean() * rows
        sizes = tuple(size for size in sizes if size <= largest) or sizes[:1]
        self.fixed, self.no_capture_reason = (rows, sizes), None

    def _padded(self, made: CompletionMicroBatch, size: int) -> CompletionMicroBatch:
        """The same queries with ``size`` answers; those of the padding have the weight 0."""
        assert made.answer_query is not None
        assert made.answer is not None
        weight = padded(torch.ones(len(made.answer)), size)
        query, answer = padded(made.answer_query, size), padded(made.answer, size)
        targets: CatalogTargets | LabelPairs
        targets = LabelPairs(row=query, item=answer, weight=weight)
        if self.softmax:
            counts = torch.bincount(made.answer_query, minlength=len(made.entity))
            most = self.most_answers
            targets = CatalogTargets(answer, query, counts, largest_count=most, weight=weight)
        made = replace(made, answer_query=query, answer=answer, weight=weight)
        return replace(made, prepared_targets=targets)


class SampledKvsAllExamples(KvsAllExamples):
    """The queries of KvsAll with ``negatives`` entities that all queries of a step share.

    Half of them are drawn from all entities, half from the answers of the batch, which are often
    those of many triples (:mod:`.shared_negatives`).
    """

    def __init__(self, graph: KnowledgeGraph, negatives: int) -> None:
        super().__init__(graph, softmax=True)
        self.sample_size = negatives
        frequencies = np.bincount(self.answers.items, minlength=len(graph.entities))
        self.shared = SharedNegatives(frequencies, "mixed", negatives)
        self._drawn: LastValueCache[Sample] = LastValueCache()

    def sample(self, batch: Batch) -> Sample:
        """The sampled entities of a step, the same for all of its micro-batches and processes."""

        def draw() -> Sample:
            answers = self.answers.take(batch.ids.numpy()).items
            return self.shared.sample(*batch.key, len(answers), lambda numbers: answers[numbers])

        return self._drawn.get(batch.key, draw)

    def inputs(self, batch: Batch, ids: Int64) -> CompletionMicroBatch:
        queries, answers = self.queries.take(ids), self.answers.take(ids)
        sample = self.sample(batch)
        items, weights = sample.items, sample.log_weights.astype(np.float32)
        masked = masked_pairs(items, answers.items, answers.rows, np.arange(len(ids) + 1))
        entity, relation = torch.from_numpy(queries.entity), torch.from_numpy(queries.relation)
        query, answer = (torch.from_numpy(each) for each in (answers.rows, answers.items))
        weight = None
        if (size := self.capacity(len(ids), len(answers.items))) is not None:
            # a sampled entity of weight 0 more, at least, which the padding of the masks masks
            columns, more = self.sample_size + 1, self.sample_size + 1 - len(items)
            masked = masked // len(items) * columns + masked % len(items)
            last = columns - 1
            masked = np.sort(np.pad(masked, (0, size - len(masked)), constant_values=last))
            items = np.pad(items, (0, more), "edge")
            weights = np.pad(weights, (0, more), constant_values=-np.inf)
            weight = padded(torch.ones(len(answer)), size)
            query, answer = padded(query, size), padded(answer, size)
        shared = SharedItems(*map(torch.from_numpy, (items, weights, masked)))
        return CompletionMicroBatch(entity, relation, query, answer, weight=weight, shared=shared)


class TripleExamples(Examples):
    """An example is a training triple in one direction: a query with one answer.

    negatives: entities sampled per example that are not known answers in training. 0: no sampling,
    all entities are scored (1vsAll).
    """

    def __init__(self, graph: KnowledgeGraph, negatives: int = 0) -> None:
        train = graph.of(TRAIN)
        entity, relation, self.targets = both_directions(train, len(graph.relations))
        self.queries = TripleQueries(entity, relation)
        self.negatives = negatives
        self.known_answers: KnownItems | None = None
        self.query_of_example: Int64 = np.empty(0, np.int64)
        if negatives:
            self.known_answers, self.query_of_example = known_of_examples(graph, entity, relation)

    def __len__(self) -> int:
        return len(self.queries)

    def inputs(self, batch: Batch, ids: Int64) -> CompletionMicroBatch:
        """The inputs on the host. ``negatives`` holds seeds, which :meth:`complete` replaces.

        int64 [B, 3]: the query, first counter and random key of each example's samples.
        """
        queries, sample_seeds = self.queries.take(ids), None
        if self.known_answers is not None:
            random_key = np.full_like(ids, signed(key(batch.seed, Stream.NEGATIVES, batch.epoch)))
            sample_seeds = torch.from_numpy(
                np.stack([self.query_of_example[ids], ids * self.negatives, random_key]).T
            )
        return CompletionMicroBatch(
            torch.from_numpy(queries.entity),
            torch.from_numpy(queries.relation),
            target=torch.from_numpy(self.targets[ids]),
            negatives=sample_seeds,
        )

    def complete(self, batch: Batch, inputs: CompletionMicroBatch) -> CompletionMicroBatch:
        micro_batch, sample_seeds = super().complete(batch, inputs), inputs.negatives
        if self.known_answers is None or sample_seeds is None:
            return micro_batch
        if self.known_answers.keys.device != sample_seeds.device:
            self.known_answers = self.known_answers.to(sample_seeds.device)
        query, first, random_key = (sample_seeds[:, each, None] for each in range(3))
        counters = first + torch.arange(self.negatives, device=sample_seeds.device)
        sampled = negatives(self.known_answers, query, random_key, counters)
        return replace(micro_batch, negatives=sampled)
