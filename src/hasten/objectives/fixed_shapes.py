"""Batches whose shapes repeat, so that a CUDA graph can be replayed for them.

What varies is padded to one of at most eight capacities. The sequences of a batch are one
rectangle, as long as the longest of all, and its targets are padded to the next capacity. A padding
target has the weight 0: its state is replaced by zeros, so all its scores are 0 and neither items
nor states get a gradient from it. It adds a known number to the loss, which is subtracted. The
result equals that of the batch without padding up to rounding; with dropout the masks differ,
because they are drawn for other shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64
from hasten.objectives.sequence_batch import NextItemInputs
from hasten.ops.buckets import SLACK_DEVICE
from hasten.ops.random import signed

#: capacities as the mean number of targets and so many standard deviations; the last one holds all
_DEVIATIONS = (-1.5, -0.75, 0.0, 0.75, 1.5, 2.25, 3.5, math.inf)
_MULTIPLE = 64


@dataclass(frozen=True)
class FixedShapes:
    """rows: sequences of a batch; length: tokens of each; capacities: numbers of targets."""

    rows: int
    length: int
    capacities: tuple[int, ...]

    @classmethod
    def of(cls, counts: Int64, rows: int) -> FixedShapes | None:
        """For batches of ``rows`` sequences, with ``counts`` targets each.

        None if the rectangle is so large that several rectangles take less time.
        """
        rows, length = min(rows, len(counts)), int(counts.max())
        if rows * length > SLACK_DEVICE:
            return None
        return cls(rows, length, capacities(counts, rows))

    def capacity(self, targets: int) -> int:
        """The smallest capacity for so many targets."""
        return capacity(self.capacities, targets)


def capacities(counts: Int64, rows: int) -> tuple[int, ...]:
    """At most eight sizes, ascending, of which one holds any ``rows`` of these counts together."""
    most = int(np.sort(counts)[-rows:].sum())
    spread = counts.std() * math.sqrt(rows)
    wanted = [min(most, counts.mean() * rows + each * spread) for each in _DEVIATIONS if spread]
    sizes = {_MULTIPLE * math.ceil(max(1.0, each) / _MULTIPLE) for each in [*wanted, most]}
    return tuple(sorted(sizes))


def capacity(sizes: Sequence[int], needed: int) -> int:
    """The smallest of these sizes, ascending, that is not below ``needed``."""
    return next(each for each in sizes if each >= needed)


def padded(values: Tensor, size: int) -> Tensor:
    """The values with zeros up to ``size`` rows."""
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])


def with_padding_targets(
    inputs: NextItemInputs, size: int, negatives_key: int, loss: Tensor
) -> NextItemInputs:
    """The inputs with targets of weight 0 up to ``size``.

    negatives_key: of the negatives. loss: of a target of weight 0, a scalar.
    """
    count, batch = len(inputs.targets), inputs.sequences

    # a rectangle without padding has as many tokens as targets, in their order
    real = torch.arange(count) if batch.real is None else batch.real
    unused = (torch.arange(size) >= count)[:, None]
    return NextItemInputs(
        replace(batch, real=padded(real, size), unused=unused),
        padded(inputs.targets, size),
        None if inputs.known_rows is None else padded(inputs.known_rows, size),
        None if inputs.counters is None else padded(inputs.counters, size),
        inputs.known_items,
        torch.tensor(signed(negatives_key)),
        torch.tensor(1 / count, dtype=loss.dtype),
        (size - count) * loss,
    )
