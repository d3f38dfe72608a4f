"""Base classes of knowledge graph models: tables, reciprocal relations, losses, the scorer.

A model scores the answers of a query (h, r, ?). The query (?, r, t) for heads is (t, r + R, ?) with
the reciprocal relation r + R. There are four losses:

- ``1-n`` (KvsAll): binary cross-entropy over all entities, with all training answers of (h, r) as
  positives and label smoothing (Dettmers et al. 2018);
- ``1vsall``: cross-entropy of one answer among all entities (Lacroix et al. 2018);
- ``1-n-softmax``: the sum of the cross-entropies of ``1vsall`` over all training answers of (h, r).
  It computes q(h, r) once for all of them;
- ``sampled``: binary cross-entropy of one answer and k sampled entities that are not known answers.
  Its cost does not depend on the number of entities.

An example, also called a query, is a distinct (entity, relation) for ``1-n`` and ``1-n-softmax``,
and a triple in one direction for ``1vsall`` and ``sampled``. The methods below return sums over the
queries of a batch, and the phase divides by their number. All losses but ``sampled`` read all
entities and need a score of the form ``q(h, r) · e_t + b_t``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import softplus

from hasten.config import TrainingOptions
from hasten.data.tables import KnowledgeGraph
from hasten.models.interface import Model, Sizes
from hasten.models.knowledge_graph.triple_options import FactorizedTripleOptions, TripleOptions
from hasten.models.rows import Rows
from hasten.models.self_links import self_link_scores
from hasten.models.supports import Supports
from hasten.objectives.base import Phase
from hasten.objectives.completion import CompletionMicroBatch, CompletionPhase
from hasten.objectives.step_rows import StepRowsCompletionPhase, by_rows
from hasten.objectives.triple_examples import KvsAllExamples, TripleExamples
from hasten.ops.dense.group_moments import GroupMoments
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.losses.catalog_targets import CatalogTargets, LabelPairs
from hasten.ops.losses.table_losses import (
    answers_above_mean,
    table_cross_entropy,
    table_one_to_many,
)
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.rows_and_table import rows_and_table
from hasten.ops.sharded_table import shardable_table
from hasten.ops.table import EmbeddingTable, Table
from hasten.ops.transfer import to_device
from hasten.scoring import Catalog, FactorScorer, PairScorer, TripleQueries, with_self_score

METRICS = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")
_NEGATIVES = 128


class TripleModel(Model):
    """Embeddings of entities, relations and reciprocal relations, for any score function.

    A subclass defines :meth:`scores`. With it alone only ``loss="sampled"`` works: declare
    ``loss: Literal["sampled"] = "sampled"`` in the subclass's options. For the losses over all
    entities see :class:`FactorizedTripleModel`.
    """

    reads = "triples"
    sample = "families"
    defaults = {"evaluation.metrics": METRICS}
    #: queries that BatchNorm normalizes together; 1: the model has no BatchNorm
    group = 1
    #: added to the score of h as an answer to (h, r, ?), by relation: float32 [2R], or None
    self_link_scores: Tensor | None
    options: TripleOptions

    def __init__(self, options: TripleOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.entities: Table = shardable_table(sizes.entities, options.width)
        self.relations: Table = EmbeddingTable(2 * sizes.relations, options.width)
        self.register_buffer("self_link_scores", None, persistent=False)

    def attach(self, dataset: KnowledgeGraph) -> None:
        """With ``exclude_self``, find the relations that link no entity to itself in training."""
        if self.options.exclude_self:
            self.self_link_scores = self_link_scores(dataset)

    def rows_of(self) -> Mapping[str, Rows]:
        relation_rows = Rows.of("relations", "relations")
        return {"entities.weight": Rows.of("entities"), "relations.weight": relation_rows}

    @abstractmethod
    def scores(self, entity: Tensor, relation: Tensor, answers: Tensor) -> Tensor:
        """[B, K] float32 scores of int64 [B, K] answers to the queries (entity, relation, ?).

        entity: int64 [B]; relation: int64 [B], r + R for the reciprocal of r.
        """

    @property
    def biases_of_entities(self) -> tuple[str, ...]:
        """The names of the biases [N] that losses over all entities add to the scores."""
        return ()

    @property
    def reads_answers(self) -> bool:
        """Whether :meth:`losses` read the rows of the answers, beside the whole table."""
        return False

    @property
    def shards_loss(self) -> bool:
        """Whether the loss can be computed from a sharded entity table: no process has all rows."""
        return True

    @property
    def moments(self) -> Sequence[GroupMoments]:
        """The statistics that BatchNorm updates in training."""
        return [part for part in self.modules() if isinstance(part, GroupMoments)]

    def phases(self, dataset: KnowledgeGraph, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: queries with all answers (KvsAll), or single triples in both directions."""
        options, entities, negatives = self.options, self.entities, 0
        examples: KvsAllExamples | TripleExamples
        if options.loss in ("1-n", "1-n-softmax"):
            examples = KvsAllExamples(dataset, softmax=options.loss == "1-n-softmax")
        else:
            negatives = (options.negatives or _NEGATIVES) if options.loss == "sampled" else 0
            examples = TripleExamples(dataset, negatives)
        size = training.batch_size
        shard = training.shard_tables if self.shards_loss else "never"
        # large or sharded table: each step gathers the rows that its batch reads. Losses over all
        # entities (no negatives) read the whole table, so they use this only for sharding
        if isinstance(entities, EmbeddingTable) and by_rows(entities, shard, whole=not negatives):
            return [StepRowsCompletionPhase(self, examples, size, entities, negatives, shard)]
        return [CompletionPhase(self, examples, size)]

    def losses(self, batch: CompletionMicroBatch) -> Sequence[tuple[str, Tensor, float]]:
        """:meth:`completion_loss` and :meth:`auxiliary_losses`, as (name, sum, weight) of each."""
        return [("loss", self.completion_loss(batch), 1.0), *self.auxiliary_losses(batch)]

    def completion_loss(self, batch: CompletionMicroBatch) -> Tensor:
        """The sum of the loss ``model.loss`` over the queries."""
        assert batch.negatives is not None, "losses over all entities need a factorized score"
        assert batch.target is not None
        ids = torch.cat([batch.target[:, None], batch.negatives], dim=1)
        scores = self.scores(batch.entity, batch.relation, ids)
        return self.sampled_loss(scores[:, 0], scores[:, 1:])

    def sampled_loss(self, true: Tensor, sampled: Tensor) -> Tensor:
        """The sum over triples of binary cross-entropy: scores [B] of answers, [B, k] of others."""
        return softplus(-true).sum() + softplus(sampled).sum()

    def auxiliary_losses(self, batch: CompletionMicroBatch) -> Sequence[tuple[str, Tensor, float]]:
        """Further losses of the queries: (name, sum over the queries, weight) of each."""
        return ()

    def example_losses(self, batch: CompletionMicroBatch) -> Tensor:
        """[B] the loss of each query of the batch, for ``hasten influence``."""
        assert batch.target is not None
        assert batch.negatives is not None
        ids = torch.cat([batch.target[:, None], batch.negatives], dim=1)
        # [B, 1, 1 + k]: for sampled_loss, each query is a batch of one
        scores = self.scores(batch.entity, batch.relation, ids)[:, None]
        losses: Tensor = torch.func.vmap(self.sampled_loss)(scores[..., 0], scores[..., 1:])
        return losses

    def scorer(self, queries: TripleQueries) -> Scorer:
        """The scores of all entities, block by block."""
        entity, relation = self._ids(queries)
        scorer = PairScorer(self.scores, entity, relation)
        return with_self_score(scorer, entity, self.self_scores(relation))

    def self_scores(self, relation: Tensor) -> Tensor | None:
        """[B] what is added to the score of an entity as an answer to its own query; None: 0."""
        added = self.self_link_scores
        return None if added is None else added.index_select(0, relation)

    def _ids(self, queries: TripleQueries) -> tuple[Tensor, Tensor]:
        ids = torch.from_numpy(queries.entity), torch.from_numpy(queries.relation)
        return to_device(ids, self.device)


class FactorizedTripleModel(TripleModel):
    """Score ``q(h, r) · e_t + b_t``; supports all losses. A subclass defines q: :meth:`vectors`."""

    supports = Supports(compile=True, shard_tables=True)
    bias: Tensor
    options: FactorizedTripleOptions

    def __init__(self, options: FactorizedTripleOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        if options.bias:
            self.bias = nn.Parameter(torch.zeros(sizes.entities))
        else:
            self.register_buffer("bias", torch.zeros(sizes.entities), persistent=False)

    def rows_of(self) -> Mapping[str, Rows]:
        return {**super().rows_of(), **dict.fromkeys(self.biases_of_entities, Rows.of("entities"))}

    @property
    def biases_of_entities(self) -> tuple[str, ...]:
        return ("bias",) if self.options.bias else ()

    @property
    def learned_bias(self) -> Tensor | None:
        """[N] the biases of the entities; None if the model has none."""
        return self.bias if self.options.bias else None

    @property
    def shards_loss(self) -> bool:
        # the softmax with label smoothing reads the mean of the table
        return self.options.loss == "1-n" or not self.options.smoothing

    @property
    def has_factored_gradients(self) -> bool:
        """Whether gradients are products of residuals (predicted - true probabilities) and vectors.

        ``hasten influence --loss training`` needs this. It is not so with regularizers.
        """
        return True

    @abstractmethod
    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        """q(h, r), float32 [B, D].

        entity_BD: embeddings of the query entities; relation: int64 [B], r or r + R.
        """

    def scores(self, entity: Tensor, relation: Tensor, answers: Tensor) -> Tensor:
        q_BD = self.vectors(self.entities.rows(entity), relation)
        # bmm instead of multiply and sum: autocast runs matrix products in low precision; the bias
        # is added in float32
        products = torch.bmm(self.entities.rows(answers), q_BD[:, :, None])[:, :, 0]
        return products.to(accumulation_dtype(q_BD)) + self.bias[answers]

    def completion_loss(self, batch: CompletionMicroBatch) -> Tensor:
        if batch.negatives is not None:
            return super().completion_loss(batch)
        return self.loss_over_all(batch, *rows_and_table(self.entities, batch.entity))

    def loss_over_all(
        self, batch: CompletionMicroBatch, entity_BD: Tensor, entities: Table
    ) -> Tensor:
        """The sum of a loss over all entities; entity_BD: the embeddings of the queries."""
        # With sharded tables every process must call the loss, which communicates, even if it has
        # no queries: then q is the empty [0, D] of entity_BD
        q_BD = self.vectors(entity_BD, batch.relation) if len(batch.relation) else entity_BD
        smoothing, bias = self.options.smoothing, self.learned_bias
        if self.options.loss == "1-n":
            assert batch.answer_query is not None  # [A], the query of each answer
            assert batch.answer is not None
            pairs = batch.prepared_targets
            if not isinstance(pairs, LabelPairs):
                pairs = LabelPairs.build(batch.answer_query, batch.answer)
            return table_one_to_many(q_BD, entities, pairs, bias, smoothing, batch.scale)
        # 1vsall has one answer, the target, for each query. 1-n-softmax has a list of answers, and
        # the query of each
        query = batch.answer_query
        answer = batch.target if batch.answer is None else batch.answer
        assert answer is not None
        targets = batch.prepared_targets
        if not isinstance(targets, CatalogTargets):
            targets = CatalogTargets.build(answer, query, len(q_BD))
        loss = table_cross_entropy(q_BD, entities, targets, bias)
        if smoothing:
            above_mean = answers_above_mean(q_BD, entities, answer, query, self.bias, batch.weight)
            loss = loss + smoothing * above_mean
        return loss

    def example_losses(self, batch: CompletionMicroBatch) -> Tensor:
        if batch.negatives is not None:
            return super().example_losses(batch)
        q_BD = self.vectors(self.entities.rows(batch.entity), batch.relation)
        scores = q_BD @ self.entities.block(0, self.sizes.entities).T + self.bias
        smoothing = self.options.smoothing
        if batch.target is not None:
            target = batch.target
            return F.cross_entropy(scores, target, reduction="none", label_smoothing=smoothing)
        labels = torch.zeros_like(scores)
        assert batch.answer_query is not None
        assert batch.answer is not None
        labels[batch.answer_query, batch.answer] = 1
        if self.options.loss == "1-n-softmax":
            spread = smoothing * labels.sum(1, keepdim=True) / len(self.entities)
            return -(((1 - smoothing) * labels + spread) * F.log_softmax(scores, 1)).sum(1)
        labels = (1 - smoothing) * labels + smoothing / len(self.entities)
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(1)

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Compile the vectors of the queries."""
        plain = type(self).vectors.__get__(self)  # the method of the class, not an earlier wrap
        self.vectors = wrap(plain)  # type: ignore[method-assign]
        return True

    def scorer(self, queries: TripleQueries) -> Scorer:
        """``q · e_t + b_t`` for all entities t."""
        entity, relation = self._ids(queries)
        vectors = self.vectors(self.entities.rows(entity), relation)
        scorer = FactorScorer(vectors, Catalog(self.entities, self.learned_bias))
        return with_self_score(scorer, entity, self.self_scores(relation))
