"""The cheaper order of ``A X W`` over a fixed graph: aggregate first, or multiply first.

``(A X) W`` and ``A (X W)`` are equal up to rounding. They differ in the rows to multiply and
in the width to aggregate. Where X is constant, ``A X`` is computed once for all steps.
"""

from __future__ import annotations

from typing import Literal

Order = Literal["aggregate first", "multiply first"]
#: cost of summing one element of one neighbor, in operations of a matrix product: 4.4 G
#: elements against 70 GFLOP a second, with one thread of a CPU
_ELEMENT = 16


def cheaper_order(
    rows: int, columns: int, entries: int, width: int, out: int, *, constant: bool
) -> Order:
    """The order with fewer operations, forward and backward.

    rows, columns, entries: of the graph; width, out: of the matrix; constant: X has no gradient,
    so that ``A X`` is not counted.
    """
    products = 2 if constant else 3
    first = 2 * rows * width * out * products
    first += 0 if constant else 2 * _ELEMENT * entries * width
    then = 2 * columns * width * out * products + 2 * _ELEMENT * entries * out
    return "aggregate first" if first <= then else "multiply first"
