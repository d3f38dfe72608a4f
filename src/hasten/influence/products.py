"""Inner products of factored gradients (:mod:`hasten.influence.factors`).

No gradient is materialized. With residuals ρ, ρ', vectors x, x', input rows e, e' and their
gradients a, a', the table's share of ⟨g, g'⟩ is

    (ρ · ρ') (x · x') + ρ'[e] (a · x') + ρ[e'] (x · a') + [e = e'] (a · a')

and the bias adds ρ · ρ'. Relations add [r = r'] (c · c'), a linear layer (δ · δ') (f · f').
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vecdot

from hasten.influence.factors import Arithmetic, Factors


def products(test: Factors, train: Factors, arithmetic: Arithmetic) -> Tensor:
    """[t, n] the inner product of each of t gradients with each of n.

    test: a query for each term, and all row gradients.
    """
    assert test.query is None
    mm = arithmetic.product

    def spread(scores: Tensor) -> Tensor:
        """[t, m] for queries as [t, n] for their terms."""
        return scores if train.query is None else scores.index_select(1, train.query)

    def train_residuals(rows: Tensor) -> Tensor:
        """[t, n] the residual of each training term at one catalog row per test."""
        return train.residuals_at(rows).T

    residuals = test.vectors.new_zeros(len(test), len(train))
    if test.dense is not None and train.dense is not None:
        residuals += spread(mm(test.dense, train.dense.T))
    if test.target is not None and test.value is not None:
        residuals += train_residuals(test.target).mul_(test.value[:, None])
    if test.dense is not None and train.target is not None and train.value is not None:
        residuals += test.dense.index_select(1, train.target).mul_(train.value)
    total = spread(mm(test.vectors, train.vectors.T))
    if train.bias:
        total += 1
    total.mul_(residuals)
    if train.rows is not None and test.rows is not None:
        assert test.rows.terms is None
        mine, other = test.rows, train.rows
        total += train_residuals(mine.entity).mul_(spread(mm(mine.head_grads, train.vectors.T)))
        share = test.residuals_at(other.entity).mul_(mm(test.vectors, other.head_grads.T))
        same = mine.entity[:, None] == other.entity
        share += mm(mine.head_grads, other.head_grads.T).mul_(same)
        same = mine.relation[:, None] == other.relation
        share += mm(mine.relation_grads, other.relation_grads.T).mul_(same)
        if other.terms is None:
            total += share
        else:
            total.index_add_(1, other.terms, share)
    for a, b in zip(test.linears, train.linears, strict=True):
        total += spread(mm(a.inputs, b.inputs.T)) * mm(a.output_grads, b.output_grads.T)
    if test.small is not None and train.small is not None:
        total += mm(test.small, train.small.T)
    return total


def paired_products(factors: Factors, first: Tensor, second: Tensor) -> Tensor:
    """[p] the inner products of the terms ``first`` with the terms ``second``, int64 [p] each.

    Pass the same tensor twice for squared norms: work shared by the terms of a query is then done
    once. Row gradients must be those of all terms.
    """
    query = factors.query
    if query is None:
        query = torch.arange(len(factors), device=factors.vectors.device)
    qa = query[first]
    qb = qa if first is second else query[second]

    def dot(rows: Tensor, a: Tensor, b: Tensor) -> Tensor:
        products: Tensor = vecdot(rows, rows)[a] if a is b else vecdot(rows[a], rows[b])
        return products

    def residual(terms: Tensor, queries: Tensor, rows: Tensor) -> Tensor:
        """[p] the residual of each of the terms at one catalog row each."""
        total = factors.vectors.new_zeros(len(terms))
        if factors.dense is not None:
            total += factors.dense[queries, rows]
        if factors.target is not None and factors.value is not None:
            total += (factors.target[terms] == rows) * factors.value[terms]
        return total

    residuals = factors.vectors.new_zeros(len(first))
    if factors.dense is not None:
        residuals += dot(factors.dense, qa, qb)
    if factors.target is not None and factors.value is not None:
        residuals += factors.value[first] * residual(second, qb, factors.target[first])
        if factors.dense is not None:
            residuals += factors.dense[qa, factors.target[second]] * factors.value[second]
    total = (dot(factors.vectors, qa, qb) + float(factors.bias)) * residuals
    if factors.rows is not None and factors.entity is not None:
        rows, vectors = factors.rows, factors.vectors
        assert rows.terms is None
        ea, eb = factors.entity[qa], factors.entity[qb]
        heads = rows.head_grads
        total += residual(second, qb, ea) * vecdot(heads[first], vectors[qb])
        total += residual(first, qa, eb) * vecdot(vectors[qa], heads[second])
        total += (ea == eb) * dot(heads, first, second)
        same = rows.relation[first] == rows.relation[second]
        total += same * dot(rows.relation_grads, first, second)
    for linear in factors.linears:
        total += dot(linear.inputs, qa, qb) * dot(linear.output_grads, first, second)
    if factors.small is not None:
        total += dot(factors.small, first, second)
    return total
