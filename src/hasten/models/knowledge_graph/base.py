"""What models of knowledge graphs share: tables, reciprocal relations, losses, the scorer.

A model answers (h, r, ?) by a vector q(h, r) and scores entity t as ``q · e_t + b_t``. Heads are
asked for by the reciprocal relation: (?, r, t) is (t, r + R, ?). Losses, summed over the questions
of a batch and divided by their number:

- ``1-n``: binary cross-entropy over all entities, with all training answers of (h, r) as
  positives and smoothed labels (Dettmers et al. 2018);
- ``1vsall``: cross-entropy of one answer among all entities (Lacroix et al. 2018), a training
  triple and direction at a time;
- ``1-n-softmax``: the same cross-entropies, but all answers of (h, r) in training together: over an
  epoch the loss of ``1vsall``, with one q(h, r) a question instead of one an answer;
- ``sampled``: binary cross-entropy of one answer and k drawn entities that are not known as
  answers; its cost does not depend on the number of entities.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.functional import softplus

from hasten.config import ModelOptions, TrainingOptions
from hasten.data.tables import KnowledgeGraph
from hasten.models.interface import Model, Sizes
from hasten.models.supports import Supports
from hasten.objectives.base import Phase
from hasten.objectives.completion import (
    CompletionBatch,
    CompletionPhase,
    Rows,
    SingleTriples,
)
from hasten.ops.dense.group_moments import GroupMoments
from hasten.ops.dtypes import wide
from hasten.ops.losses.catalogue_loss import catalogue_cross_entropy
from hasten.ops.losses.one_to_many_loss import one_to_many_loss
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable, Table
from hasten.scoring import Catalogue, FactorScorer, TripleQueries

METRICS = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")
_SMOOTHING, _NEGATIVES = 0.1, 128
Share = Annotated[float, Field(ge=0, lt=1)]
Loss = Literal["1-n", "1-n-softmax", "1vsall", "sampled"]
LOSSES = (
    "binary over all entities, all answers of a question at once; softmax, all answers at once; "
    "softmax, one answer; one answer among drawn entities"
)


class TripleOptions(ModelOptions):
    """Options that models of knowledge graphs share."""

    width: int = Field(200, ge=1, description="D, the width of entities and relations")
    loss: Loss = Field("1-n", description=LOSSES)
    label_smoothing: Share | None = Field(None, description="of 1-n: labels (1-s) y + s/N (0.1)")
    negatives: int | None = Field(
        None, ge=1, description="of sampled: entities drawn for each answer (128)"
    )

    @model_validator(mode="after")
    def _of_the_loss(self) -> TripleOptions:
        for name, of in (("label_smoothing", "1-n"), ("negatives", "sampled")):
            if getattr(self, name) is not None and self.loss != of:
                raise ValueError(f"{name} has no effect with loss={self.loss}, only with {of}")
        return self

    @property
    def smoothing(self) -> float:
        """The label smoothing in effect."""
        return _SMOOTHING if self.label_smoothing is None else self.label_smoothing


class TripleModel(Model):
    """Entities, relations in both directions, an entity bias; a subclass says what q(h, r) is."""

    reads = "triples"
    sample = "families"
    supports = Supports(compile=True)
    defaults = {"evaluation.metrics": METRICS}
    #: questions whose BatchNorm statistics are taken together; 1: there are none
    group = 1
    options: TripleOptions

    def __init__(self, options: TripleOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.entities: Table = EmbeddingTable(sizes.entities, options.width)
        self.relations: Table = EmbeddingTable(2 * sizes.relations, options.width)
        self.bias = nn.Parameter(torch.zeros(sizes.entities))

    @abstractmethod
    def vectors(self, head_BD: Tensor, relation: Tensor) -> Tensor:
        """[B, D] float32: q(h, r) of entities' rows and int64 [B] relations or reciprocals."""

    @property
    def moments(self) -> Sequence[GroupMoments]:
        """What BatchNorm follows in training."""
        return [part for part in self.modules() if isinstance(part, GroupMoments)]

    def phases(self, dataset: KnowledgeGraph, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: rows with all their answers, or single triples in both directions."""
        options = self.options
        examples: Rows | SingleTriples
        if options.loss in ("1-n", "1-n-softmax"):
            examples = Rows(dataset)
        else:
            sampled = (options.negatives or _NEGATIVES) if options.loss == "sampled" else 0
            examples = SingleTriples(dataset, sampled)
        return [CompletionPhase(self, examples, training.batch_size)]

    def completion_loss(self, batch: CompletionBatch) -> Tensor:
        """The loss that the options name, summed over the questions and times ``batch.scale``."""
        head_BD = self.entities.rows(batch.entity)
        table = self.entities.block(0, self.sizes.entities)
        x_BD = self.vectors(head_BD, batch.relation)
        if batch.row is not None and batch.item is not None:
            if self.options.loss == "1-n-softmax":
                total = catalogue_cross_entropy(x_BD, [table], batch.item, self.bias, of=batch.row)
                return batch.scale * total
            smoothing, pairs = self.options.smoothing, (batch.row, batch.item)
            return one_to_many_loss(x_BD, [table], *pairs, self.bias, smoothing, batch.scale)
        assert batch.target is not None
        if batch.negatives is None:
            return batch.scale * catalogue_cross_entropy(x_BD, [table], batch.target, self.bias)
        ids = torch.cat([batch.target[:, None], batch.negatives], dim=1)
        # a product, so that it is taken in the precision asked for; the rest in float32
        products = torch.bmm(self.entities.rows(ids), x_BD[:, :, None])[:, :, 0]
        scores = products.to(wide(x_BD)) + self.bias[ids]
        true, drawn = softplus(-scores[:, 0]), softplus(scores[:, 1:])
        return batch.scale * (true.sum() + drawn.sum())

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Compile what a step calls: the vectors of the questions."""
        plain = type(self).vectors.__get__(self)  # not what an earlier call put in its place
        self.vectors = wrap(plain)  # type: ignore[method-assign]
        return True

    def scorer(self, queries: TripleQueries) -> Scorer:
        """``q · e_t + b_t`` for all entities t."""
        device = self.bias.device
        entity = torch.from_numpy(queries.entity).to(device)
        relation = torch.from_numpy(queries.relation).to(device)
        vectors = self.vectors(self.entities.rows(entity), relation)
        return FactorScorer(vectors, Catalogue(self.entities, self.bias))
