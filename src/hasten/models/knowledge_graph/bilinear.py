"""Base class of models whose score is the product of three embeddings.

Two terms can be added to the loss, both over the triples (h, r, t) of a batch, one for each answer
of its queries:

- ``n3``: weight · Σ |h_k|³ + |r_k|³ + |t_k|³, the weighted nuclear 3-norm (Lacroix et al. 2018),
  with the moduli of complex numbers. r is the reciprocal relation in a query for heads;
- ``relation_weight``: weight · cross-entropy of r given (h, ?, t) among all relations and
  reciprocals (Chen et al. 2021).

They are divided by the number of queries, like the loss.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from hasten.config import RunConfig
from hasten.models.data_size import LENGTH, SMALL_GRAPH, DataSize, run_length, triple_loss
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.models.knowledge_graph.triple_options import (
    LOSS_DESCRIPTION,
    NEGATIVES,
    FactorizedTripleOptions,
    Loss,
    Rate,
)
from hasten.models.search_space import Choice, Range
from hasten.objectives.completion import CompletionMicroBatch
from hasten.ops.dense.dropout import dropout
from hasten.ops.losses.catalog_loss import catalog_cross_entropy
from hasten.ops.rows_and_table import rows_and_table
from hasten.ops.table import gathered_rows

#: a large graph with more entities than this samples them: four times as many as a sample has
ENTITIES_TO_SAMPLE = 4 * NEGATIVES["sampled-softmax"]


class BilinearOptions(FactorizedTripleOptions):
    """Options of the product models."""

    loss: Loss = Field("1vsall", description=LOSS_DESCRIPTION)
    dropout: Rate = Field(0.5, description="dropout rate of the product of two embeddings")
    n3: float = Field(
        0.0, ge=0, description="weight of the cubes of the embeddings of each triple (N3)"
    )
    relation_weight: float = Field(
        0.0, ge=0, description="weight of predicting the relation of each triple (cross-entropy)"
    )


class BilinearModel(FactorizedTripleModel):
    """``q(h, r) = compose(e_h, e_r)``, then dropout. A subclass defines :meth:`compose`."""

    defaults = {
        **FactorizedTripleModel.defaults,
        "lr": 1e-3,
        "batch_size": 512,
        "schedule": "cosine",
    }
    search = {
        "training.lr": Range(5e-4, 2e-2, log=True),
        "training.batch_size": Choice(128, 256, 512, 1024),
        "model.width": Choice(100, 200, 400),
        "model.loss": Choice("1-n", "1-n-softmax", "1vsall"),
        "model.dropout": Range(0.0, 0.7),
        "model.n3": Range(1e-6, 1e-1, log=True),
    }
    defaults_from_data: ClassVar[tuple[str, ...]] = (
        *LENGTH,
        "training.lr",
        "training.batch_size",
        "model.loss",
        "model.width",
        "model.dropout",
        "model.n3",
        "model.relation_weight",
        "model.exclude_self",
    )
    options: BilinearOptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """One answer per row of a small graph; else all answers of a query at once, and N3.

        A large graph of many entities samples them. With ``sampled-softmax`` steps are faster and
        noisier, so there are twice as many, and the embeddings are wider. The learning rate is less
        for more triples, by their square root.
        """
        small = size.triples < SMALL_GRAPH
        samples = size.entities > ENTITIES_TO_SAMPLE and not config.gives("model.label_smoothing")
        large = "sampled-softmax" if samples else "1-n-softmax"
        loss = triple_loss(size, config, "1vsall" if small else large)
        wide = loss == "sampled-softmax"
        examples = 2 * size.triples if loss in ("1vsall", "sampled") else size.queries
        batch_size = config.given("training.batch_size", 256)
        steps, fewest = (8000, 40) if wide else (4000, 20)
        return {
            **run_length(config, examples, steps, (fewest, 100), batch_size),
            "training.lr": float(f"{min(2e-2, (2 / max(1, size.triples)) ** 0.5):.1g}"),
            "training.batch_size": batch_size,
            "model.loss": loss,
            "model.width": 200 if small else 800 if wide else 400,
            "model.dropout": 0.5 if small else 0.2,
            "model.n3": 0.0 if small else 0.03 if wide else 0.01,
            "model.relation_weight": 0.0 if small else 2.0 if wide else 1.0,
            "model.exclude_self": True,
        }

    @staticmethod
    @abstractmethod
    def compose(head: Tensor, relation: Tensor) -> Tensor:
        """[B, D] products of rows [B, D]."""

    @classmethod
    def compose_conjugate(cls, head: Tensor, tail: Tensor) -> Tensor:
        """[B, D] products of the complex conjugates of heads and of tails, both rows [B, D]."""
        return cls.compose(head, tail)

    @staticmethod
    def cubes(rows: Tensor) -> Tensor:
        """[B] sums of the cubed moduli of rows [B, D]."""
        return rows.abs().pow(3).sum(1)

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        product = self.compose(entity_BD, self.relations.rows(relation))
        return dropout(product, self.options.dropout, self.training)

    def relation_vectors(self, head: Tensor, tail: Tensor) -> Tensor:
        """[B, D] p with ``score(h, r, t) = p · e_r + b_t``, of rows [B, D]; then dropout."""
        product = self.compose_conjugate(head, tail)
        return dropout(product, self.options.dropout, self.training)

    @property
    def has_factored_gradients(self) -> bool:
        further_terms = self.options.n3 or self.options.relation_weight
        return super().has_factored_gradients and not further_terms

    @property
    def reads_answers(self) -> bool:
        return bool(self.options.n3 or self.options.relation_weight)

    def losses(self, batch: CompletionMicroBatch) -> Sequence[tuple[str, Tensor, float]]:
        if not self.reads_answers:
            return super().losses(batch)
        answer = batch.target if batch.answer is None else batch.answer
        assert answer is not None
        if batch.negatives is not None:
            entity_BD, tail = self.entities.rows(batch.entity), self.entities.rows(answer)
            first = super().losses(batch)
        elif batch.shared is not None:
            entity_BD, tail, sampled = self.rows_of_sample(batch, batch.shared)
            loss = self.losses_over_sample(batch, entity_BD, tail, sampled).sum()
            first = [("loss", loss, 1.0), *self.auxiliary_losses(batch)]
        else:
            rows, entities = rows_and_table(self.entities, torch.cat([batch.entity, answer]))
            entity_BD, tail = torch.split(rows, [len(batch.entity), len(answer)])
            loss = self.loss_over_all(batch, entity_BD, entities)
            first = [("loss", loss, 1.0), *self.auxiliary_losses(batch)]
        return [*first, *self.terms_of_triples(batch, entity_BD, tail)]

    def terms_of_triples(
        self, batch: CompletionMicroBatch, entity_BD: Tensor, tail: Tensor
    ) -> Sequence[tuple[str, Tensor, float]]:
        """N3 and the prediction of relations. tail: [P, D] the embeddings of the answers."""
        n3, weight, query = self.options.n3, self.options.relation_weight, batch.answer_query
        terms: list[tuple[str, Tensor, float]] = []
        if n3:
            of_answers = self.cubes(tail)
            of_queries = self.cubes(entity_BD) + self.cubes(self.relations.rows(batch.relation))
            if query is not None:  # a query's cubes count once for each answer
                ones = torch.ones_like(of_answers) if batch.weight is None else batch.weight
                of_answers = of_answers * ones
                of_queries = of_queries * ones.new_zeros(len(of_queries)).index_add_(0, query, ones)
            terms.append(("n3", of_answers.sum() + of_queries.sum(), n3))
        if weight:
            table = self.relations.block(0, 2 * self.sizes.relations)
            head = entity_BD if query is None else gathered_rows(entity_BD, query)
            relation, vectors = batch.triples()[1], self.relation_vectors(head, tail)
            if batch.weight is None:
                loss = catalog_cross_entropy(vectors, [table], relation)
            else:  # the loss of a vector of zeros is known, and has no gradient
                used = batch.weight > 0
                vectors = vectors.masked_fill(~used[:, None], 0.0)
                loss = catalog_cross_entropy(vectors, [table], relation)
                loss = loss - (~used).sum() * math.log(len(table))
            terms.append(("relation", loss, weight))
        return terms

    def example_losses(self, batch: CompletionMicroBatch) -> Tensor:
        losses = super().example_losses(batch)
        if not (self.options.n3 or self.options.relation_weight):
            return losses
        entity, relation, answer = batch.triples()
        head, tail = self.entities.rows(entity), self.entities.rows(answer)
        rows = head, self.relations.rows(relation), tail
        table = self.relations.block(0, 2 * self.sizes.relations)
        scores = self.relation_vectors(head, tail) @ table.T
        each = self.options.relation_weight * F.cross_entropy(scores, relation, reduction="none")
        each = each + self.options.n3 * torch.stack([self.cubes(row) for row in rows]).sum(0)
        if batch.answer_query is not None:
            each = torch.zeros_like(losses).index_add(0, batch.answer_query, each)
        return losses + each
