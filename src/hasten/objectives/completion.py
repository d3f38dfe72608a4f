"""The training phase of knowledge graphs: 1-N rows, or single triples in both directions.

Every relation has a reciprocal, so that heads are asked for as tails (Lacroix et al. 2018; Dettmers
et al. 2018 for ConvE): a training triple (h, r, t) is an answer t of (h, r) and an answer h of
(t, r + R).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, KnowledgeGraph
from hasten.errors import DataError
from hasten.objectives.base import Batch, Encoded, SimplePhase, Term
from hasten.objectives.batch_order import Latest
from hasten.objectives.triple_queries import both_directions, training_rows
from hasten.ops.dense.group_moments import GroupMoments
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, key, permutation
from hasten.scoring import TripleQueries


@dataclass(frozen=True)
class CompletionBatch:
    """Questions of a micro-batch on the model's device.

    entity, relation: int64 [B]. Answers either as pairs, row and item: int64 [P] (1-N), or one a
    row, target: int64 [B], with negatives: int64 [B, k] or None. scale: 1 over the number of
    questions of the global batch.
    """

    entity: Tensor
    relation: Tensor
    row: Tensor | None = None
    item: Tensor | None = None
    target: Tensor | None = None
    negatives: Tensor | None = None
    scale: float = 1.0


class CompletionModel(Protocol):
    """What the phase needs of a model.

    group: questions whose BatchNorm statistics are taken together, 1 for models without.
    moments: what BatchNorm gathers in training; completion_loss: summed over the questions
    and times the batch's scale.
    """

    group: int

    @property
    def moments(self) -> Sequence[GroupMoments]: ...

    def completion_loss(self, batch: CompletionBatch) -> Tensor: ...

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool: ...


class Examples(Protocol):
    """What a phase trains on: questions with their answers, by number."""

    def __len__(self) -> int: ...

    def batch(self, of: Batch, rows: Int64, device: torch.device) -> CompletionBatch:
        """The tensors of these examples of a batch."""
        ...


class CompletionPhase(SimplePhase):
    """Batches of examples in the order of the epoch's permutation.

    A last batch of one example is no batch of its own, because BatchNorm could not estimate a
    variance from it: it joins the one before.
    """

    name = "completion"

    def __init__(self, model: CompletionModel, examples: Examples, batch_size: int) -> None:
        assert isinstance(model, nn.Module)
        self.module: nn.Module = model
        self.model: CompletionModel = model
        self.data = examples
        self.batch_size = batch_size
        self._order: Latest[Tensor] = Latest()

    def steps(self) -> int:
        count, size = len(self.data), self.batch_size
        alone = count % size == 1 and count > 1 and size > 1
        return -(-count // size) - alone

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        base, count = key(seed, Stream.PERMUTATION, epoch), len(self.data)
        order = self._order.of((seed, epoch), lambda: permutation(count, base))
        last = index == self.steps() - 1
        stop = len(self.data) if last else (index + 1) * self.batch_size
        ids = order[index * self.batch_size : stop]
        sizes = {"questions": float(len(ids))}
        return Batch(ids, seed, epoch, index, sizes, group=self.model.group)

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)

    def parameters(self) -> Sequence[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        return self.model.compile_with(wrap)

    def encode(self, batch: Batch) -> Encoded:
        """No graph to encode; the step's moments start anew."""
        for moments in self.model.moments:
            moments.start()
        return ()

    def terms(self, encoded: Encoded, batch: Batch, rows: Tensor) -> Sequence[Term]:
        device = next(self.module.parameters()).device
        loss = self.model.completion_loss(self.data.batch(batch, rows.numpy(), device))
        return [Term("loss", loss, 1.0)]  # divided by the number of questions already

    def sums(self) -> Sequence[Tensor]:
        return [moments.gathered for moments in self.model.moments]

    def end_step(self, finite: Tensor) -> None:
        for moments in self.model.moments:
            moments.fold(finite)


class Rows:
    """1-N ("KvsAll"): a row is an (entity, relation) with all its answers in the training part."""

    def __init__(self, graph: KnowledgeGraph) -> None:
        self.questions, self.answers = training_rows(graph)

    def __len__(self) -> int:
        return len(self.questions)

    def batch(self, of: Batch, rows: Int64, device: torch.device) -> CompletionBatch:
        asked, answers = self.questions.take(rows), self.answers.take(rows)
        return CompletionBatch(
            entity=_to(asked.entity, device),
            relation=_to(asked.relation, device),
            row=_to(answers.rows, device),
            item=_to(answers.items, device),
            scale=1 / of.denominators["questions"],
        )


class SingleTriples:
    """An example is a training triple in one direction, with its one answer.

    negatives: entities sampled for each that are not among the known answers in training; 0: none,
    all entities are scored (1vsAll).
    """

    def __init__(self, graph: KnowledgeGraph, negatives: int = 0) -> None:
        train = graph.of(TRAIN)
        entity, relation, self.targets = both_directions(train, len(graph.relations))
        self.questions = TripleQueries(entity, relation)
        self.negatives = negatives
        self.known: KnownItems | None = None
        self.row: Int64 = np.empty(0, np.int64)
        if negatives:
            self.known, self.row = _known(graph, entity, relation)

    def __len__(self) -> int:
        return len(self.questions)

    def batch(self, of: Batch, rows: Int64, device: torch.device) -> CompletionBatch:
        asked = self.questions.take(rows)
        entity, relation = _to(asked.entity, device), _to(asked.relation, device)
        drawn = None
        if self.known is not None:
            if self.known.keys.device != device:
                self.known = self.known.to(device)
            row = _to(self.row[rows], device)[:, None]
            first = _to(rows * self.negatives, device)[:, None]
            counters = first + torch.arange(self.negatives, device=device)
            drawn = negatives(self.known, row, key(of.seed, Stream.NEGATIVES, of.epoch), counters)
        return CompletionBatch(
            entity,
            relation,
            target=_to(self.targets[rows], device),
            negatives=drawn,
            scale=1 / of.denominators["questions"],
        )


def _to(values: Int64, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, non_blocking=True)


def _known(graph: KnowledgeGraph, entity: Int64, relation: Int64) -> tuple[KnownItems, Int64]:
    """The known answers of each training question, and the question of each example."""
    questions, answers = training_rows(graph)
    count = len(graph.entities)
    if answers.lengths.max() >= count:
        full = questions.take(np.flatnonzero(answers.lengths >= count)[:1])
        label = graph.entities.take(full.entity)[0].as_py()
        raise DataError(
            f"all {count:,} entities answer one question about {label!r}, so there are no "
            "negatives to draw: use a loss without them (model.loss=1-n)"
        )
    asked = questions.relation * count + questions.entity
    row = np.searchsorted(asked, relation * count + entity)
    return KnownItems.build(answers.rows, answers.items, len(questions), count), row
