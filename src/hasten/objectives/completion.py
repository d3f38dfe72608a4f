"""Training phase of knowledge graphs: triple completion, by KvsAll queries or by single triples.

Every relation has a reciprocal, so a query for heads is a query for tails (Lacroix et al. 2018;
Dettmers et al. 2018 for ConvE): a training triple (h, r, t) is the answer t of the query (h, r) and
the answer h of the query (t, r + R).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, KnowledgeGraph
from hasten.objectives.base import Batch, Encoded, ExampleBatches, Term
from hasten.objectives.fixed_shapes import capacities, capacity, padded
from hasten.objectives.triple_queries import both_directions, known_of_examples, training_queries
from hasten.ops.dense.group_moments import GroupMoments
from hasten.ops.losses.catalog_targets import CatalogTargets, LabelPairs
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, key, signed
from hasten.ops.transfer import to_device
from hasten.scoring import TripleQueries

#: the most answers that a batch is padded to, as a multiple of the mean: on FB15k-237 the longest
#: batch has 85,000 and the mean is 930; padded to the longest, ComplEx took 15 GB in place of 2.4
_LARGEST_CAPACITY = 4


@dataclass(frozen=True)
class CompletionMicroBatch:
    """The queries of a micro-batch, on the model's device, and their answers.

    entity, relation: int64 [B].
    scale: 1 / queries of the global batch, the upstream gradient of the summed loss. Losses that
    compute their gradients in the forward pass need it in advance.

    With all answers of a query (KvsAll), P pairs:
    answer_query, answer: int64 [P], the query's number in the micro-batch and an entity.
    prepared_targets: the same pairs in the form that the losses over all entities take.
    weight: float32 [P], 0 for padding pairs (:mod:`.fixed_shapes`); None: there is no padding.

    With one answer per query:
    target: int64 [B], the entity.
    negatives: int64 [B, k], sampled entities; None: the loss is over all entities.
    """

    entity: Tensor
    relation: Tensor
    answer_query: Tensor | None = None
    answer: Tensor | None = None
    target: Tensor | None = None
    negatives: Tensor | None = None
    scale: float = 1.0
    prepared_targets: CatalogTargets | LabelPairs | None = None
    weight: Tensor | None = None

    def triples(self) -> tuple[Tensor, Tensor, Tensor]:
        """Entity, relation and answer of each answer of the queries: int64 [P] or [B] each."""
        if self.target is not None:
            return self.entity, self.relation, self.target
        assert self.answer_query is not None
        assert self.answer is not None
        query = self.answer_query
        return self.entity[query], self.relation[query], self.answer


class CompletionModel(Protocol):
    """What the phase needs from a model.

    group: queries that share BatchNorm statistics, 1 for models without BatchNorm. moments: the
    statistics that training collects.
    """

    group: int

    @property
    def moments(self) -> Sequence[GroupMoments]: ...

    @property
    def reads_answers(self) -> bool:
        """Whether auxiliary losses read the answers' embeddings, beside the main loss."""
        ...

    @property
    def biases_of_entities(self) -> tuple[str, ...]:
        """The names of the biases [N] that losses over all entities add to the scores."""
        ...

    def completion_loss(self, batch: CompletionMicroBatch) -> Tensor:
        """The sum of the loss over the queries."""
        ...

    def auxiliary_losses(self, batch: CompletionMicroBatch) -> Sequence[tuple[str, Tensor, float]]:
        """Further losses: (name, sum over the queries, weight) of each."""
        ...

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool: ...


class Examples(ABC):
    """Numbered training examples: queries with their answers."""

    #: why steps cannot be captured in a CUDA graph, as :attr:`Phase.no_capture_reason`
    no_capture_reason: str | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def inputs(self, batch: Batch, ids: Int64) -> CompletionMicroBatch:
        """These examples of a batch, on the host, without what is sampled on the device."""

    def fix_shapes(self, batch_size: int) -> None:
        """Pad the answers of a full batch to one of a few lengths, for the reuse of CUDA graphs."""
        return

    def complete(self, batch: Batch, inputs: CompletionMicroBatch) -> CompletionMicroBatch:
        """The micro-batch: inputs that were copied to the device, and what is computed there."""
        return replace(inputs, scale=1 / batch.denominators["examples"])

    def batch(self, batch: Batch, ids: Int64, device: torch.device) -> CompletionMicroBatch:
        """These examples of a batch on the device."""
        return self.complete(batch, to_device(self.inputs(batch, ids), device))


class CompletionPhase(ExampleBatches):
    """Batches of queries in the order of the epoch's permutation.

    A last batch of one example joins the batch before it: BatchNorm cannot estimate a variance from
    one example.
    """

    name = "completion"

    def __init__(self, model: CompletionModel, examples: Examples, batch_size: int) -> None:
        assert isinstance(model, nn.Module)
        super().__init__(len(examples), batch_size)
        self.module: nn.Module = model
        self.model: CompletionModel = model
        self.data, self.no_capture_reason = examples, examples.no_capture_reason

    def steps(self) -> int:
        count, size = self.count, self.batch_size
        single = count % size == 1 and count > 1 and size > 1
        return super().steps() - single

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        return replace(super().plan(seed, epoch, index), group=self.model.group)

    def parameters(self) -> Sequence[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def fix_shapes(self) -> None:
        self.data.fix_shapes(self.batch_size)
        self.no_capture_reason = self.data.no_capture_reason

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        return self.model.compile_with(wrap)

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        super().wrap_batch_building(wrap)
        self.data.complete = wrap(self.data.complete)  # type: ignore[method-assign]

    def encode(self, batch: Batch) -> Encoded:
        """What all micro-batches share: nothing. Starts the sums of BatchNorm statistics."""
        self.start_step()
        return ()

    def start_step(self) -> None:
        """Set the sums of batch statistics of the step to zero; the running statistics stay."""
        for moments in self.model.moments:
            moments.start()

    @cached_property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def term_inputs(self, batch: Batch, ids: Tensor) -> CompletionMicroBatch:
        return self.data.inputs(batch, ids.numpy())

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        return self.terms_of(batch, self.data.complete(batch, self.on_device(batch, ids)))

    def terms_of(self, batch: Batch, queries: CompletionMicroBatch) -> Sequence[Term]:
        """The loss terms of a micro-batch."""
        count = batch.denominators["examples"]
        loss = Term("loss", self.model.completion_loss(queries), count)
        more = self.model.auxiliary_losses(queries)
        return [loss, *(Term(name, total, count, weight) for name, total, weight in more)]

    def buffers_to_sum(self) -> Sequence[Tensor]:
        return [moments.gathered for moments in self.model.moments]

    def end_step(self, finite: Tensor) -> None:
        for moments in self.model.moments:
            moments.update_running(finite)


class KvsAllExamples(Examples):
    """An example is an (entity, relation) with all its answers in the training part (KvsAll).

    softmax: the loss is a softmax over all entities, not 1-N binary cross-entropy.
    """

    no_capture_reason: str | None = "the number of answers differs between batches"

    def __init__(self, graph: KnowledgeGraph, softmax: bool = False) -> None:
        self.queries, self.answers = training_queries(graph)
        self.softmax = softmax
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
        if self.fixed is not None and self.fixed[0] == len(ids):
            _, sizes = self.fixed
            if len(answer) <= sizes[-1]:
                return self._padded(made, capacity(sizes, len(answer)))
        if self.softmax:
            targets = CatalogTargets.build(answer, query, len(ids))
            return replace(made, prepared_targets=targets)
        return replace(made, prepared_targets=LabelPairs.build(query, answer))

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
            largest = float(self.answers.lengths.max())
            targets = CatalogTargets(answer, query, counts, largest_count=largest, weight=weight)
        made = replace(made, answer_query=query, answer=answer, weight=weight)
        return replace(made, prepared_targets=targets)


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
