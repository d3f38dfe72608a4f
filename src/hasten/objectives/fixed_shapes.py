"""Batches of sequences whose shapes repeat, so that a CUDA graph can be replayed for them.

The sequences of a batch are one rectangle, as long as the longest of all, and its targets are
padded to the next of eight capacities. A padding target has the weight 0: its state is replaced by
zeros, so all its scores are 0 and neither items nor states get a gradient from it. It adds a known
number to the loss, which is subtracted. The result equals that of the batch without padding up to
rounding; with dropout the masks differ, because they are drawn for other shapes.
"""

from __future__ import annotations

import math
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
        most = int(np.sort(counts)[-rows:].sum())
        spread = counts.std() * math.sqrt(rows)
        wanted = [min(most, counts.mean() * rows + each * spread) for each in _DEVIATIONS if spread]
        sizes = {_MULTIPLE * math.ceil(max(1.0, each) / _MULTIPLE) for each in [*wanted, most]}
        return cls(rows, length, tuple(sorted(sizes)))

    def capacity(self, targets: int) -> int:
        """The smallest capacity for so many targets."""
        return next(each for each in self.capacities if each >= targets)


def with_unused_targets(inputs: NextItemInputs, size: int, base: int) -> NextItemInputs:
    """The inputs with targets of weight 0 up to ``size``. base: the key of the negatives."""
    count, batch = len(inputs.targets), inputs.sequences

    def padded(values: Tensor) -> Tensor:
        return torch.cat([values, values.new_zeros(size - count, *values.shape[1:])])

    # a rectangle without padding has as many tokens as targets, in their order
    real = torch.arange(count) if batch.real is None else batch.real
    unused = (torch.arange(size) >= count)[:, None]
    return NextItemInputs(
        replace(batch, real=padded(real), unused=unused),
        padded(inputs.targets),
        None if inputs.known_rows is None else padded(inputs.known_rows),
        None if inputs.counters is None else padded(inputs.counters),
        inputs.known,
        torch.tensor(signed(base)),
        torch.tensor(float(count), dtype=torch.float64),
        torch.tensor(float(size - count), dtype=torch.float64),
    )
