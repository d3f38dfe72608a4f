"""Base class of knowledge graph models with a score ``q(h, r) · e_t + b_t``, and their losses.

The losses are described in :mod:`.base`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.base import TripleModel
from hasten.models.knowledge_graph.triple_options import FactorizedTripleOptions
from hasten.models.rows import Rows
from hasten.models.supports import Supports
from hasten.objectives.completion import CompletionMicroBatch
from hasten.objectives.shared_negatives import SharedItems
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.losses.catalog_targets import CatalogTargets, LabelPairs
from hasten.ops.losses.query_softmax import query_softmax
from hasten.ops.losses.table_losses import (
    answers_above_mean,
    table_cross_entropy,
    table_one_to_many,
)
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.rows_and_table import rows_and_table
from hasten.ops.table import Table, gathered_rows
from hasten.scoring import Catalog, FactorScorer, TripleQueries, with_self_score


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
        if batch.shared is not None:
            return self.losses_over_sample(batch, *self.rows_of_sample(batch, batch.shared)).sum()
        return self.loss_over_all(batch, *rows_and_table(self.entities, batch.entity))

    def rows_of_sample(self, batch: CompletionMicroBatch, shared: SharedItems) -> list[Tensor]:
        """The embeddings of the queries' entities [B, D], answers [P, D] and sample [S, D]."""
        ids = [batch.entity, batch.triples()[2], shared.items]
        return list(torch.split(self.entities.rows(torch.cat(ids)), [len(each) for each in ids]))

    def losses_over_sample(
        self, batch: CompletionMicroBatch, entity_BD: Tensor, answers_PD: Tensor, sampled_SD: Tensor
    ) -> Tensor:
        """[B] ``sampled-softmax`` of the queries, from :meth:`rows_of_sample`."""
        q_BD = self.vectors(entity_BD, batch.relation) if len(batch.relation) else entity_BD
        query, answer, shared = batch.answer_query, batch.answer, batch.shared
        assert query is not None
        assert answer is not None
        assert shared is not None
        kind = accumulation_dtype(q_BD)
        logits = (q_BD @ sampled_SD.T).to(kind) + (self.bias[shared.items] + shared.log_weights)
        logits.view(-1).index_fill_(0, shared.masked, -torch.inf)
        scores = (gathered_rows(q_BD, query) * answers_PD).sum(1, dtype=kind) + self.bias[answer]
        return query_softmax(logits, scores, query, batch.weight)

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
        if batch.shared is not None:
            return self.losses_over_sample(batch, *self.rows_of_sample(batch, batch.shared))
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
