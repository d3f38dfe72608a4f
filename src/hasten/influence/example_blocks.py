"""Shared by all kinds of examples: memory per example and loss term, and division into blocks.

The loss of a training example is a sum of terms, and that of a test example a sum of as many: one
for an interaction, two for a triple (its tail query and its head query). A term that several
examples share is computed once. All examples have ``terms_of``, int64 [d, examples] the terms of
each training example (tests have d terms each), ``terms`` and ``tests``, their numbers, and
``dtype``, that of the model's weights.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MemorySizes:
    """Numbers in memory, roughly: per test, per term of a block, and per pair of them."""

    test: int
    term: int
    pair: int


def cut(count: int, rows: int) -> list[tuple[int, int]]:
    """0..count in pieces of ``rows``."""
    return [(start, min(start + rows, count)) for start in range(0, count, rows)]
