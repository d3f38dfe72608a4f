"""The interfaces of TracIn: examples, and sources of gradient products (factored or by autograd).

The loss of a training example is a sum of terms, and that of a test example a sum of as many: one
for an interaction, two for a triple (its tail query and its head query). A term that several
examples share is computed once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class MemorySizes:
    """Numbers in memory, roughly: per test, per term of a block, and per pair of them."""

    test: int
    term: int
    pair: int


class Examples(Protocol):
    """Training and test examples.

    terms_of: int64 [d, examples] the terms of each training example; tests have d terms each.
    terms, tests: how many there are; dtype: of the model's weights.
    """

    terms_of: Tensor
    terms: int
    tests: int
    dtype: torch.dtype

    def blocks(self, rows: int) -> list[tuple[int, int]]:
        """The training terms in blocks of at most ``rows`` where possible: starts and ends."""
        ...


class Source(Protocol):
    """Inner products of the gradients of examples, under the model's current weights.

    :class:`hasten.influence.factored.FactoredSource` and
    :class:`hasten.influence.autograd.AutogradSource` implement it.
    """

    @property
    def examples(self) -> Examples: ...

    def sizes(self) -> MemorySizes: ...

    def gradients(self, start: int, stop: int, rows: int) -> Any:
        """The gradients of some tests, computed for at most ``rows`` terms at a time."""
        ...

    def products(self, gradients: Any, start: int, stop: int) -> Tensor:
        """[T, n] the inner products of T tests' gradients with those of n training terms."""
        ...

    def norms(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """int64 [p] some training examples, and the squared norms [p] of their gradients."""
        ...


def cut(count: int, rows: int) -> list[tuple[int, int]]:
    """0..count in pieces of ``rows``."""
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]
