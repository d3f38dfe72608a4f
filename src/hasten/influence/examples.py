"""The seam between what is traced and the passes over it.

A source knows the training examples, whose loss is a sum of terms, and the tests, whose loss is a
sum of as many (one for an event, two for a triple: the question for its tail and that for its
head). An inner product of gradients is then a sum over pairs of terms, and a term that several
examples share is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, ragged_offsets
from hasten.influence.factors import Factors, Inputs, Linear
from hasten.ops.graph.csr import CSR


@dataclass(frozen=True)
class Wanted:
    """Which rows the tests touch, bool [entities] and [relations]: the others match nothing."""

    entities: Tensor
    relations: Tensor


@dataclass(frozen=True)
class Sizes:
    """Numbers held at once, roughly: for a test, for a term of a block, and for a pair of them."""

    test: int
    term: int
    pair: int


class Source(Protocol):
    """Training examples and tests, as the current weights of the model see them.

    members: int64 [d, examples] the terms of each training example; tests have d terms each.
    """

    members: Tensor
    terms: int
    tests: int
    dtype: torch.dtype

    def sizes(self) -> Sizes: ...

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        """The terms in blocks of at most ``rows`` (where an example allows): starts and ends."""
        ...

    def block(self, start: int, stop: int, wanted: Wanted | None) -> Factors:
        """The gradients of some training terms; inputs only where wanted (None: all)."""
        ...

    def test(self, start: int, stop: int) -> Factors:
        """Those of some tests: the first term of each, then the second of each."""
        ...

    def wanted(self, test: Factors) -> Wanted | None:
        """What of the inputs of training terms can meet these tests; None: all."""
        ...

    def own(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """int64 [p] examples and the squared norms [p] of their gradients: part of an order."""
        ...


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of questions of the training part. asked: int64 [q] ascending keys."""

    asked: Int64
    answers: CSR
    entities: int

    @classmethod
    def build(cls, entity: Int64, relation: Int64, answers: CSR, entities: int) -> Answers:
        """Of distinct questions in the order of (relation, entity)."""
        offsets = np.append(answers.offsets, answers.offsets[-1])  # and a row for the unknown
        return cls(relation * entities + entity, CSR(offsets, answers.items), entities)

    def of(self, entity: Int64, relation: Int64, also: Int64 | None = None) -> CSR:
        """The answers of these questions, in one row each; ``also``: one more for each."""
        wanted = relation * self.entities + entity
        row = np.searchsorted(self.asked, wanted)
        known = self.asked[np.minimum(row, len(self.asked) - 1)] == wanted
        found = self.answers.take(np.where(known, row, len(self.asked)))
        if also is None:
            return found
        rows = np.concatenate([found.rows, np.arange(len(wanted))])
        items = np.concatenate([found.items, also])
        order = np.argsort(rows, kind="stable")
        offsets = ragged_offsets(rows, len(wanted))
        return CSR(offsets, items[order]).distinct()


def cut(count: int, rows: int) -> list[tuple[int, int]]:
    """0..count in pieces of ``rows``."""
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]


def stacked(parts: list[Factors]) -> Factors:
    """Factors under each other; each with a question for each term and all inputs."""
    if len(parts) == 1:
        return parts[0]

    def cat(name: str) -> Tensor | None:
        rows = [getattr(part, name) for part in parts]
        return None if rows[0] is None else torch.cat(rows)

    first = parts[0]
    inputs = None
    if first.inputs is not None:
        held = [part.inputs for part in parts if part.inputs is not None]
        inputs = Inputs(
            None,
            torch.cat([each.entity for each in held]),
            torch.cat([each.relation for each in held]),
            torch.cat([each.heads for each in held]),
            torch.cat([each.relations for each in held]),
        )
    vectors = cat("vectors")
    assert vectors is not None
    return Factors(
        of=None,
        vectors=vectors,
        dense=cat("dense"),
        target=cat("target"),
        value=cat("value"),
        bias=first.bias,
        entity=cat("entity"),
        inputs=inputs,
        linears=[
            Linear(torch.cat([e.inputs for e in each]), torch.cat([e.slopes for e in each]))
            for each in zip(*(part.linears for part in parts), strict=True)
        ],
        small=cat("small"),
    )
