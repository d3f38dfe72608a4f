"""Gradients of single loss terms, kept in the factors that their inner products need.

A loss term belongs to a question with the vector x [D], whose score for catalogue row j is
``x · E_j + b_j``. With the residuals ρ = ∂ℓ/∂s over the catalogue its gradient is

- of the table E: ρ xᵀ, and a [D] more at row e where the question reads the row e of the same
  table; of the bias: ρ;
- of the relations: c [D] at row r;
- of a linear layer: δ fᵀ, its output's gradient by its input;
- of everything small (filters, gains, shifts): one vector, written out.

Residuals are a row shared by all terms of a question (``dense``) and one number at a target:
ρ = dense + value · 1[target]. Either may be absent.

Shapes: n terms of m questions, D width, N catalogue rows, k terms with input gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hasten.ops.dense.product import product

Loss = Literal["training", "positive"]
Layers = Literal["all", "last"]


@dataclass(frozen=True)
class Linear:
    """A linear layer: what went in, [m, F], and the gradient of what came out, [n, G]."""

    inputs: Tensor
    slopes: Tensor


@dataclass(frozen=True)
class Inputs:
    """Gradients of the rows that questions read.

    at: int64 [k] the terms they belong to, None for all; entity, relation: int64 [k] the rows;
    heads, relations: [k, D] their gradients.
    """

    at: Tensor | None
    entity: Tensor
    relation: Tensor
    heads: Tensor
    relations: Tensor


@dataclass(frozen=True)
class Factors:
    """The gradients of n loss terms of m questions.

    of: int64 [n] the question of each term, None: each has its own, in order. vectors: [m, D];
    dense: [m, N] or None; target: int64 [n], value: [n], or both None; bias: whether the catalogue
    has one. entity: int64 [m], inputs: None where only the scores' own layer counts.
    """

    of: Tensor | None
    vectors: Tensor
    dense: Tensor | None
    target: Tensor | None
    value: Tensor | None
    bias: bool
    entity: Tensor | None = None
    inputs: Inputs | None = None
    linears: Sequence[Linear] = ()
    small: Tensor | None = None

    def __len__(self) -> int:
        return len(self.vectors if self.of is None else self.of)

    @property
    def question(self) -> Tensor:
        """int64 [n] the question of each term."""
        if self.of is not None:
            return self.of
        return torch.arange(len(self.vectors), device=self.vectors.device)

    def take(self, terms: Tensor) -> Factors:
        """These terms (int64 [p]), each with a question of its own; inputs must be of all terms."""
        question = self.question[terms]

        def rows(held: Tensor | None) -> Tensor | None:
            return None if held is None else held.index_select(0, question)

        def each(held: Tensor | None) -> Tensor | None:
            return None if held is None else held.index_select(0, terms)

        inputs = self.inputs
        if inputs is not None:
            assert inputs.at is None
            inputs = Inputs(
                None,
                inputs.entity[terms],
                inputs.relation[terms],
                inputs.heads.index_select(0, terms),
                inputs.relations.index_select(0, terms),
            )
        return Factors(
            of=None,
            vectors=self.vectors.index_select(0, question),
            dense=rows(self.dense),
            target=each(self.target),
            value=each(self.value),
            bias=self.bias,
            entity=rows(self.entity),
            inputs=inputs,
            linears=[
                Linear(
                    linear.inputs.index_select(0, question), linear.slopes.index_select(0, terms)
                )
                for linear in self.linears
            ],
            small=each(self.small),
        )

    def single(self) -> Factors:
        """The same with a question for each term."""
        return (
            self if self.of is None else self.take(torch.arange(len(self), device=self.of.device))
        )


@dataclass(frozen=True)
class Arithmetic:
    """The precision of matrix products: ``low`` (or None for that of the operands).

    Everything else, sums of products included, stays in the precision of the model.
    """

    low: torch.dtype | None = None

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b``."""
        if self.low is None:
            return a @ b
        return (a.to(self.low) @ b.to(self.low)).to(a.dtype)

    def again(self, a: Tensor, b: Tensor) -> Tensor:
        """``a @ b`` of shapes that come again and again, b [K, N] without gaps."""
        return product(a, b) if self.low is None else self.product(a, b)
