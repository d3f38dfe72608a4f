"""Inner products of gradients that are kept in factors (:mod:`hasten.influence.factors`).

No gradient is ever written out: with residuals ρ, ρ', vectors x, x', input rows e, e' and their
gradients a, a' the table's share of ⟨g, g'⟩ is

    (ρ · ρ') (x · x') + ρ'[e] (a · x') + ρ[e'] (x · a') + [e = e'] (a · a')

and ρ · ρ' that of the bias; relations give [r = r'] (c · c'), a linear layer (δ · δ') (f · f').
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hasten.influence.factors import Arithmetic, Factors


def products(test: Factors, train: Factors, arithmetic: Arithmetic) -> Tensor:
    """[t, n] the inner product of each of t gradients with each of n.

    test: with a question for each term (:meth:`Factors.single`) and all inputs.
    """
    assert test.of is None
    mm = arithmetic.product

    def spread(scores: Tensor) -> Tensor:
        return scores if train.of is None else scores.index_select(1, train.of)

    across = spread(mm(test.vectors, train.vectors.T))
    if train.bias:
        across += 1
    total = across.mul_(_residuals(test, train, mm, spread))
    if train.inputs is not None and test.inputs is not None:
        assert test.inputs.at is None
        there = _residuals_of_train_at(test.inputs.entity, train, spread)
        total += there.mul_(spread(mm(test.inputs.heads, train.vectors.T)))
        here = _residuals_of_test_at(train.inputs.entity, test)
        share = here.mul_(mm(test.vectors, train.inputs.heads.T))
        same = test.inputs.entity[:, None] == train.inputs.entity
        share += mm(test.inputs.heads, train.inputs.heads.T).mul_(same)
        same = test.inputs.relation[:, None] == train.inputs.relation
        share += mm(test.inputs.relations, train.inputs.relations.T).mul_(same)
        if train.inputs.at is None:
            total += share
        else:
            total.index_add_(1, train.inputs.at, share)
    for mine, other in zip(test.linears, train.linears, strict=True):
        total += spread(mm(mine.inputs, other.inputs.T)) * mm(mine.slopes, other.slopes.T)
    if test.small is not None and train.small is not None:
        total += mm(test.small, train.small.T)
    return total


_Product = Callable[[Tensor, Tensor], Tensor]
_Spread = Callable[[Tensor], Tensor]


def _residuals(test: Factors, train: Factors, mm: _Product, spread: _Spread) -> Tensor:
    """[t, n] ρ · ρ'."""
    total = test.vectors.new_zeros(len(test), len(train))
    if test.dense is not None and train.dense is not None:
        total += spread(mm(test.dense, train.dense.T))
    if test.target is not None and test.value is not None:
        total += _residuals_of_train_at(test.target, train, spread).mul_(test.value[:, None])
    if test.dense is not None and train.target is not None and train.value is not None:
        total += test.dense.index_select(1, train.target).mul_(train.value)
    return total


def _residuals_of_train_at(rows: Tensor, train: Factors, spread: _Spread) -> Tensor:
    """[t, n] the residual of each training term at a catalogue row of each test."""
    total = train.vectors.new_zeros(len(rows), len(train))
    if train.dense is not None:
        total += spread(train.dense.index_select(1, rows).T)
    if train.target is not None and train.value is not None:
        total += (rows[:, None] == train.target) * train.value
    return total


def _residuals_of_test_at(rows: Tensor, test: Factors) -> Tensor:
    """[t, k] the residual of each test at these catalogue rows."""
    total = test.vectors.new_zeros(len(test), len(rows))
    if test.dense is not None:
        total += test.dense.index_select(1, rows)
    if test.target is not None and test.value is not None:
        total += (test.target[:, None] == rows) * test.value[:, None]
    return total


def row_products(a: Tensor, b: Tensor) -> Tensor:
    """[p] the product of each row of [p, D] with the same row of the other."""
    found: Tensor = torch.linalg.vecdot(a, b)
    return found


def paired(factors: Factors, first: Tensor, second: Tensor) -> Tensor:
    """[p] the inner products of the terms ``first`` with the terms ``second``, int64 [p] each.

    Give the same tensor twice for squared norms: work shared by the terms of a question is then
    done once. Inputs must be those of all terms.
    """
    question = factors.question
    qa = question[first]
    qb = qa if first is second else question[second]

    def dot(rows: Tensor, a: Tensor, b: Tensor) -> Tensor:
        if a is b:
            return row_products(rows, rows)[a]
        return row_products(rows[a], rows[b])

    total = dot(factors.vectors, qa, qb)
    if factors.bias:
        total = total + 1
    total = total * _paired_residuals(factors, first, second, qa, qb, dot)
    if factors.inputs is not None and factors.entity is not None:
        inputs = factors.inputs
        assert inputs.at is None
        ea, eb = factors.entity[qa], factors.entity[qb]
        heads, vectors = inputs.heads, factors.vectors
        across = row_products(heads[first], vectors[qb])
        total += _residual_at(factors, second, qb, ea) * across
        across = row_products(vectors[qa], heads[second])
        total += _residual_at(factors, first, qa, eb) * across
        total += (ea == eb) * dot(heads, first, second)
        same = inputs.relation[first] == inputs.relation[second]
        total += same * dot(inputs.relations, first, second)
    for linear in factors.linears:
        total += dot(linear.inputs, qa, qb) * dot(linear.slopes, first, second)
    if factors.small is not None:
        total += dot(factors.small, first, second)
    return total


def _paired_residuals(
    factors: Factors,
    first: Tensor,
    second: Tensor,
    qa: Tensor,
    qb: Tensor,
    dot: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Tensor:
    """[p] ρ · ρ' of each pair."""
    total = factors.vectors.new_zeros(len(first))
    if factors.dense is not None:
        total += dot(factors.dense, qa, qb)
    if factors.target is not None and factors.value is not None:
        at = factors.target[first]
        total += factors.value[first] * _residual_at(factors, second, qb, at)
        if factors.dense is not None:
            total += factors.dense[qa, factors.target[second]] * factors.value[second]
    return total


def _residual_at(factors: Factors, terms: Tensor, questions: Tensor, rows: Tensor) -> Tensor:
    """[p] the residual of each of the terms at one catalogue row each."""
    total = factors.vectors.new_zeros(len(terms))
    if factors.dense is not None:
        total += factors.dense[questions, rows]
    if factors.target is not None and factors.value is not None:
        total += (factors.target[terms] == rows) * factors.value[terms]
    return total
