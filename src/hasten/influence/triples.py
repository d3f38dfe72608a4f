"""Factored gradients of triples: a triple's terms are its tail query and its head query.

With the reciprocal relation r + R, a triple (h, r, t) has the queries (h, r, ?) and (t, r + R, ?),
as in training. Its loss is the sum over both of

- ``positive``: the binary cross-entropy of the correct answer alone;
- ``training``: the whole loss of the query as it is trained. With ``1-n`` (KvsAll) all training
  answers of the query are positives (for a test triple also its own answer), so triples that share
  the query share the loss, which is computed once for each distinct query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets
from hasten.data.tables import TRAIN, KnowledgeGraph, Triples
from hasten.influence.convolution import ConvEEncoder
from hasten.influence.encoders import BilinearEncoder
from hasten.influence.example_blocks import MemorySizes, cut
from hasten.influence.factors import (
    Arithmetic,
    Factors,
    Layers,
    Loss,
    RowGradients,
    RowMask,
    per_term,
    positive_residuals,
    row_residuals,
    scores_of,
    softmax_residuals,
)
from hasten.influence.products import paired_products
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.objectives.triple_queries import both_directions, group_queries, training_queries
from hasten.ops.graph.csr import CSR
from hasten.scoring import TripleQueries


@dataclass(frozen=True, eq=False)
class Answers:
    """The training answers of every query. keys: int64 [q] relation * entities + entity, sorted."""

    keys: Int64
    answers: CSR
    entities: int

    @classmethod
    def build(cls, graph: KnowledgeGraph) -> Answers:
        queries, answers = training_queries(graph)
        offsets = np.append(answers.offsets, answers.offsets[-1])  # a row for unknown queries
        entities = len(graph.entities)
        keys = queries.relation * entities + queries.entity
        return cls(keys, CSR(offsets, answers.items), entities)

    def of(self, entity: Int64, relation: Int64, also: Int64 | None = None) -> CSR:
        """The answers of these queries, one row each. also: int64 [m], one more answer for each."""
        query_codes = relation * self.entities + entity
        row = np.searchsorted(self.keys, query_codes)
        known = self.keys[np.minimum(row, len(self.keys) - 1)] == query_codes
        answers = self.answers.take(np.where(known, row, len(self.keys)))
        if also is None:
            return answers
        rows = np.concatenate([answers.rows, np.arange(len(query_codes))])
        items = np.concatenate([answers.items, also])
        order = np.argsort(rows, kind="stable")
        return CSR(ragged_offsets(rows, len(query_codes)), items[order]).distinct()


class TripleFactors:
    """The gradients of terms under the model's current weights."""

    def __init__(
        self,
        model: FactorizedTripleModel,
        encoder: BilinearEncoder | ConvEEncoder,
        answers: Answers,
        loss: Loss,
        layers: Layers,
        arithmetic: Arithmetic,
    ) -> None:
        self.model, self.encoder, self.answers = model, encoder, answers
        self.layers, self.arithmetic = layers, arithmetic
        #: residuals over the whole catalog
        self.whole = loss == "training"
        #: all answers of a query in one term
        self.shared = self.whole and model.options.loss == "1-n"
        self.smoothing = smoothing = model.options.smoothing
        #: of the answer, for the loss ``positive``
        self.label = 1.0
        if model.options.loss == "1-n":
            self.label = 1 - smoothing + smoothing / model.sizes.entities

    @torch.no_grad()
    def __call__(
        self,
        queries: TripleQueries,
        query: Int64 | None = None,
        target: Int64 | None = None,
        mask: RowMask | None = None,
        answers: CSR | None = None,
    ) -> Factors:
        """The factors of the terms of m queries.

        query: int64 [n] the query of each term, None if every query is one; target: int64 [n], None
        if all answers of a query are one term. answers: of each query, None for those of training.
        """
        model, device, bias = self.model, self.model.bias.device, self.model.options.bias
        entity, relation = (
            torch.from_numpy(ids).to(device) for ids in (queries.entity, queries.relation)
        )
        of_term, targets = (
            None if ids is None else torch.from_numpy(ids).to(device) for ids in (query, target)
        )
        state: Any  # each encoder's own
        vectors, state = self.encoder.forward(entity, relation)
        table = model.entities.block(0, model.sizes.entities)
        dense = value = None
        if self.shared:
            scores = scores_of(vectors, table, model.bias, self.arithmetic)
            if answers is None:
                answers = self.answers.of(queries.entity, queries.relation)
            dense = row_residuals(scores, answers, self.smoothing)
        else:
            assert targets is not None
            if self.whole:
                scores = scores_of(vectors, table, model.bias, self.arithmetic)
                dense, value = softmax_residuals(scores, targets, self.smoothing)
            else:
                each = per_term(vectors, of_term)
                value = positive_residuals(each, table, model.bias, targets, self.label)
        if self.layers == "last":
            return Factors(of_term, vectors, dense, targets, value, bias)
        grads = vectors.new_zeros(())
        if dense is not None:
            grads = per_term(self.arithmetic.product(dense, table), of_term)
        if targets is not None and value is not None:
            grads = grads + table.index_select(0, targets) * value[:, None]
        if self.layers != "all":
            back = self.encoder.backward(state, grads, of_term, None)
            small = back.small
            if (
                small is not None and self.layers == "last-2"
            ):  # gains and shifts of the linear layer
                small = small[:, -2 * vectors.shape[1] :]
            return Factors(
                of_term, vectors, dense, targets, value, bias, linears=back.linears, small=small
            )
        entities, relations = per_term(entity, of_term), per_term(relation, of_term)
        factor_rows = None
        if mask is not None:
            factor_rows = (mask.entities[entities] | mask.relations[relations]).nonzero()[:, 0]
        back = self.encoder.backward(state, grads, of_term, factor_rows)
        rows = RowGradients(
            factor_rows,
            per_term(entities, factor_rows),
            per_term(relations, factor_rows),
            back.head_grads,
            back.relation_grads,
        )
        return Factors(
            of_term, vectors, dense, targets, value, bias, entity, rows, back.linears, back.small
        )


class FactoredTriples:
    """The training triples ``kept`` (int64 rows) of a knowledge graph, and test triples."""

    def __init__(
        self, graph: KnowledgeGraph, factors: TripleFactors, tests: Triples, chosen: Int64
    ) -> None:
        self.factors, self.given = factors, tests
        self.relations, self.entities = len(graph.relations), len(graph.entities)
        self.triples = graph.of(TRAIN).take(chosen)
        self.tests, self.dtype = len(tests), factors.model.bias.dtype
        grouped = group_queries(self.triples, self.relations, self.entities)
        self.queries, self.targets = grouped.queries, grouped.targets
        self.query_of_target = rows = grouped.targets.rows
        is_head_query = grouped.queries.relation[rows] >= self.relations
        terms_of = np.empty((2, len(self.triples)), np.int64)
        term = rows if factors.shared else np.arange(len(rows))
        terms_of[is_head_query.astype(np.int64), grouped.triple] = term
        self.terms = len(grouped.queries) if factors.shared else len(rows)
        self.terms_of = torch.from_numpy(terms_of).to(factors.model.bias.device)

    def sizes(self) -> MemorySizes:
        width = self.factors.model.entities.block(0, 1).shape[1]
        query, term, factor = width, 0, 0
        if self.factors.layers == "all":
            query, term, factor = self.factors.encoder.floats()
        whole = self.entities if self.factors.whole else 0
        return MemorySizes(
            test=2 * (2 * width + factor + whole) + self.terms,
            term=query + term + 4 * width + 2 * whole,
            pair=8,
        )

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        return cut(self.terms, rows)

    def block(self, start: int, stop: int, mask: RowMask | None) -> Factors:
        if self.factors.shared:
            queries = self.queries.take(np.arange(start, stop))
            return self.factors(queries, mask=mask)
        rows = self.query_of_target[start:stop]
        first = int(rows[0])
        queries = self.queries.take(np.arange(first, int(rows[-1]) + 1))
        target = self.targets.items[start:stop]
        return self.factors(queries, rows - first, target, mask)

    def test(self, start: int, stop: int) -> Factors:
        triples = self.given.take(np.arange(start, stop))
        entity, relation, target = both_directions(triples, self.relations)
        if self.factors.shared:
            answers = self.factors.answers.of(entity, relation, target)
            return self.factors(TripleQueries(entity, relation), answers=answers)
        return self.factors(TripleQueries(entity, relation), target=target)

    def mask(self, tests: Sequence[Factors]) -> RowMask | None:
        device = self.terms_of.device
        entities = torch.zeros(self.entities, dtype=torch.bool, device=device)
        relations = torch.zeros(2 * self.relations, dtype=torch.bool, device=device)
        for test in tests:
            if test.dense is not None or test.rows is None or test.target is None:
                return None
            entities[test.target] = entities[test.rows.entity] = True
            relations[test.rows.relation] = True
        return RowMask(entities, relations)

    @cached_property
    def order(self) -> Int64:
        """Triples by their tail query, so that neighbors share it."""
        return np.lexsort((self.triples.head, self.triples.relation))

    def norms(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        chosen = self.order[start:stop]
        triples = self.triples.take(chosen)
        entity, relation, target = both_directions(triples, self.relations)
        keys, query = np.unique(relation * self.entities + entity, return_inverse=True)
        query = query.astype(np.int64)
        queries = TripleQueries(keys % self.entities, keys // self.entities)
        device = self.terms_of.device
        if self.factors.shared:
            factors = self.factors(queries)
            tail, head = (torch.from_numpy(half).to(device) for half in np.split(query, 2))
        else:
            factors = self.factors(queries, query, target)
            tail = torch.arange(len(triples), device=device)
            head = tail + len(triples)
        norms = paired_products(factors, tail, tail) + paired_products(factors, head, head)
        norms += 2 * paired_products(factors, tail, head)
        return torch.from_numpy(chosen).to(device), norms
