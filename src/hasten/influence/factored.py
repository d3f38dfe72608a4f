"""Factored gradients: the fast path of models whose scores are ``x · E + b``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.influence.events import FactoredEvents
from hasten.influence.example_blocks import MemorySizes, cut
from hasten.influence.factors import Arithmetic, Factors, RowMask
from hasten.influence.products import products
from hasten.influence.sketch import Sketch
from hasten.influence.triples import FactoredTriples


@dataclass(frozen=True)
class TestGradients:
    """Either the factors of some tests, in parts, or their sketches [T, K]."""

    parts: Sequence[Factors]
    mask: RowMask | None
    sketches: Tensor | None


class FactoredSource:
    """Inner products from factors, or from their random projections if there is a sketch."""

    def __init__(
        self,
        examples: FactoredTriples | FactoredEvents,
        arithmetic: Arithmetic,
        sketch: Sketch | None = None,
    ) -> None:
        self.examples, self.arithmetic, self.sketch = examples, arithmetic, sketch
        self.directions = len(examples.terms_of)

    def sizes(self) -> MemorySizes:
        sizes = self.examples.sizes()
        if self.sketch is None:
            return sizes
        size = self.sketch.size
        return MemorySizes(self.examples.terms + size, sizes.term + 8 * size, sizes.pair)

    def gradients(self, start: int, stop: int, rows: int) -> TestGradients:
        """The gradients of some tests, computed for at most ``rows`` terms at a time."""
        parts = cut(stop - start, max(1, rows // self.directions))
        tests = (self.examples.test(start + a, start + b) for a, b in parts)
        if self.sketch is None:
            factors = list(tests)
            return TestGradients(factors, self.examples.mask(factors), None)
        sketches = [self._summed(self.sketch(test), self.sketch.size) for test in tests]
        return TestGradients((), None, torch.cat(sketches))

    def products(self, gradients: TestGradients, start: int, stop: int) -> Tensor:
        """[T, n] the inner products of T tests' gradients with those of n training terms."""
        block = self.examples.block(start, stop, gradients.mask)
        if gradients.sketches is not None:
            assert self.sketch is not None
            return self.arithmetic.product(gradients.sketches, self.sketch(block).T)
        parts = (products(part, block, self.arithmetic) for part in gradients.parts)
        return torch.cat([self._summed(part, stop - start) for part in parts])

    def norms(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """int64 [p] some training examples, and the squared norms [p] of their gradients."""
        return self.examples.norms(start, stop)

    def _summed(self, rows: Tensor, width: int) -> Tensor:
        """[T, width] rows of terms, summed over the terms of each test."""
        return rows.view(self.directions, -1, width).sum(0)
