"""Triples traced: the terms of a triple are its question for the tail and that for the head.

With the reciprocal relation r + R a triple (h, r, t) asks (h, r, ?) and (t, r + R, ?), as in
training, and its loss is the sum over both, of

- ``positive``: the binary cross-entropy of the one cell, t of (h, r) and h of (t, r + R);
- ``training``: the whole loss of the question as it is trained on. Under ``1-n`` that has all
  training answers of the question as positives (of a test triple its own answer too) and is the
  same for all triples that share the question: it is computed once for each distinct one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.tables import TRAIN, KnowledgeGraph, Triples
from hasten.influence.body import Body, spread
from hasten.influence.examples import Answers, Sizes, Wanted, cut
from hasten.influence.factors import Arithmetic, Factors, Inputs, Layers, Loss
from hasten.influence.products import paired
from hasten.influence.residuals import (
    positive_residuals,
    row_residuals,
    scores_of,
    softmax_residuals,
)
from hasten.models.knowledge_graph.base import TripleModel
from hasten.objectives.triple_queries import both_directions, questions_of, training_rows
from hasten.ops.graph.csr import CSR


@dataclass(frozen=True, eq=False)
class Terms:
    """Loss terms of questions.

    entity, relation: int64 [m]; of: int64 [n] or None, the question of each term; target: int64 [n]
    or None, where a term has an answer of its own.
    """

    entity: Int64
    relation: Int64
    of: Int64 | None
    target: Int64 | None


class CompletionFactors:
    """The gradients of terms under the model's current weights."""

    def __init__(
        self,
        model: TripleModel,
        body: Body,
        answers: Answers,
        loss: Loss,
        layers: Layers,
        arithmetic: Arithmetic,
    ) -> None:
        self.model, self.body, self.answers = model, body, answers
        self.layers, self.arithmetic = layers, arithmetic
        #: a residual over the whole catalogue; all answers of a question in one term
        self.whole = loss == "training"
        self.rows = self.whole and model.options.loss == "1-n"
        smoothing = model.options.smoothing if model.options.loss == "1-n" else 0.0
        self.smoothing, self.label = smoothing, 1 - smoothing + smoothing / model.sizes.entities

    @torch.no_grad()
    def __call__(self, terms: Terms, wanted: Wanted | None, answers: CSR | None = None) -> Factors:
        """Factors of these terms. answers: of each question, None for those of training."""
        model, mm = self.model, self.arithmetic.product
        device = model.bias.device
        entity, relation, of, target = (
            None if ids is None else torch.from_numpy(ids).to(device)
            for ids in (terms.entity, terms.relation, terms.of, terms.target)
        )
        assert entity is not None
        assert relation is not None
        vectors, state = self.body.forward(entity, relation)
        table = model.entities.block(0, model.sizes.entities)
        dense = value = None
        if self.whole:
            scores = scores_of(vectors, table, model.bias, self.arithmetic)
            if self.rows:
                known = (
                    self.answers.of(terms.entity, terms.relation) if answers is None else answers
                )
                dense = row_residuals(scores, known, self.smoothing)
            else:
                assert target is not None
                dense, value = softmax_residuals(scores, target)
        else:
            assert target is not None
            value = positive_residuals(spread(vectors, of), table, model.bias, target, self.label)
        found = Factors(of, vectors, dense, target, value, bias=True)
        if self.layers == "last":
            return found
        slopes = vectors.new_zeros(()) if dense is None else spread(mm(dense, table), of)
        if target is not None and value is not None:
            slopes = slopes + table.index_select(0, target) * value[:, None]
        of_terms, relations = spread(entity, of), spread(relation, of)
        at = None
        if wanted is not None:
            at = (wanted.entities[of_terms] | wanted.relations[relations]).nonzero()[:, 0]
        back = self.body.backward(state, slopes, of, at)
        inputs = Inputs(at, spread(of_terms, at), spread(relations, at), back.heads, back.relations)
        return Factors(
            of, vectors, dense, target, value, True, entity, inputs, back.linears, back.small
        )


class TripleSource:
    """The training triples (those kept) and the tests of a knowledge graph."""

    def __init__(
        self, graph: KnowledgeGraph, make: CompletionFactors, tests: Triples, kept: Int64
    ) -> None:
        self.graph, self.make, self.given = graph, make, tests
        self.relations, self.entities = len(graph.relations), len(graph.entities)
        self.triples = graph.of(TRAIN).take(kept)
        self.tests, self.dtype = len(tests), make.model.bias.dtype
        asked = questions_of(self.triples, self.relations, self.entities)
        self.questions, self.targets = asked.queries, asked.targets
        rows = asked.targets.rows
        heads_asked = asked.queries.relation[rows] >= self.relations
        term = rows if make.rows else np.arange(len(rows))
        members = np.empty((2, len(self.triples)), np.int64)
        members[heads_asked.astype(np.int64), asked.triple] = term
        self.terms = len(asked.queries) if make.rows else len(rows)
        self.row_of_term = rows
        self.members = torch.from_numpy(members).to(make.model.bias.device)

    def sizes(self) -> Sizes:
        make, width = self.make, self.make.model.entities.block(0, 1).shape[1]
        question, term = make.body.floats() if make.layers == "all" else (width, 0)
        kept = make.body.kept() if make.layers == "all" else 0
        whole = self.entities if make.whole else 0
        return Sizes(
            test=2 * (2 * width + kept + whole) + self.terms,
            term=question + term + 4 * width + 2 * whole,
            pair=8,
        )

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        return cut(self.terms, rows)

    def block(self, start: int, stop: int, wanted: Wanted | None) -> Factors:
        if self.make.rows:
            asked = self.questions.take(np.arange(start, stop))
            return self.make(Terms(asked.entity, asked.relation, None, None), wanted)
        rows = self.row_of_term[start:stop]
        first = int(rows[0])
        asked = self.questions.take(np.arange(first, int(rows[-1]) + 1))
        target = self.targets.items[start:stop]
        return self.make(Terms(asked.entity, asked.relation, rows - first, target), wanted)

    def test(self, start: int, stop: int) -> Factors:
        some = self.given.take(np.arange(start, stop))
        entity, relation, target = both_directions(some, self.relations)
        if self.make.rows:
            answers = self.make.answers.of(entity, relation, target)
            return self.make(Terms(entity, relation, None, None), None, answers)
        return self.make(Terms(entity, relation, None, target), None)

    def wanted(self, test: Factors) -> Wanted | None:
        if test.dense is not None or test.inputs is None or test.target is None:
            return None
        device = test.vectors.device
        entities = torch.zeros(self.entities, dtype=torch.bool, device=device)
        relations = torch.zeros(2 * self.relations, dtype=torch.bool, device=device)
        entities[test.target] = entities[test.inputs.entity] = True
        relations[test.inputs.relation] = True
        return Wanted(entities, relations)

    @cached_property
    def order(self) -> Int64:
        """Triples by their question for the tail, so that neighbours share it."""
        return np.lexsort((self.triples.head, self.triples.relation))

    def own(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        chosen = self.order[start:stop]
        some = self.triples.take(chosen)
        entity, relation, target = both_directions(some, self.relations)
        asked, of = np.unique(relation * self.entities + entity, return_inverse=True)
        of = of.astype(np.int64)
        questions = asked % self.entities, asked // self.entities
        device = self.make.model.bias.device
        if self.make.rows:
            factors = self.make(Terms(*questions, None, None), None)
            tail, head = (torch.from_numpy(half).to(device) for half in np.split(of, 2))
        else:
            factors = self.make(Terms(*questions, of, target), None)
            tail = torch.arange(len(some), device=device)
            head = tail + len(some)
        norms = paired(factors, tail, tail) + paired(factors, head, head)
        norms += 2 * paired(factors, tail, head)
        return torch.from_numpy(chosen).to(device), norms


def training_answers(graph: KnowledgeGraph) -> Answers:
    """The answers of every question of the training part."""
    asked, answers = training_rows(graph)
    return Answers.build(asked.entity, asked.relation, answers, len(graph.entities))
