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

import torch
from torch import Tensor, nn

from hasten.arrays import Int64
from hasten.objectives.base import Batch, Encoded, ExampleBatches, Term
from hasten.objectives.shared_negatives import SharedItems
from hasten.ops.dense.group_moments import GroupMoments
from hasten.ops.losses.catalog_targets import CatalogTargets, LabelPairs
from hasten.ops.transfer import to_device


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
    shared: the sampled entities, and which of them are answers; None: the loss is over all.

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
    shared: SharedItems | None = None

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
        """Whether the losses read the answers' embeddings, beside the whole table."""
        ...

    @property
    def biases_of_entities(self) -> tuple[str, ...]:
        """The names of the biases [N] that losses over all entities add to the scores."""
        ...

    def losses(self, batch: CompletionMicroBatch) -> Sequence[tuple[str, Tensor, float]]:
        """The loss and its further terms: (name, sum over the queries, weight) of each."""
        ...

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool: ...


class Examples(ABC):
    """Numbered training examples: queries with their answers."""

    #: why steps cannot be captured in a CUDA graph, as :attr:`Phase.no_capture_reason`
    no_capture_reason: str | None = None
    #: int64, the number of answers of each example; None: one
    sizes: Int64 | None = None

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

    def largest_step(self, seed: int, epoch: int) -> int | None:
        """The step with most answers: some queries have thousands."""
        sizes = self.data.sizes
        if sizes is None:
            return None
        steps = range(self.steps())
        return max(steps, key=lambda step: int(sizes[self.ids(seed, epoch, step).numpy()].sum()))

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
        losses = self.model.losses(queries)
        return [Term(name, total, count, weight) for name, total, weight in losses]

    def buffers_to_sum(self) -> Sequence[Tensor]:
        return [moments.gathered for moments in self.model.moments]

    def end_step(self, finite: Tensor) -> None:
        for moments in self.model.moments:
            moments.update_running(finite)
