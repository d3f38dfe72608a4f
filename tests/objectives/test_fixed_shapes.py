"""Batches whose shapes repeat: loss and gradients are those without padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.objectives.fixed_shapes import FixedShapes
from tests.contract.cases import CASES
from tests.device.measure import build

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "label", ["sasrec-ce", "sasrec-bce-post", "sasrec-gbce", "tisasrec-ce", "tisasrec-bce"]
)
def test_padding_changes_neither_the_loss_nor_the_gradients(label):
    case = next(case for case in CASES if case.label == label)
    found = []
    for fixed in (False, True):
        *_, model, (stepper,) = build(case, CPU, **case.without_dropout)
        model.double()
        if fixed:
            stepper.phase.fix_shapes()
            stepper.phase.fixed = FixedShapes(16, 12, (256,))  # more than any batch has
        losses = stepper.accumulate(stepper.phase.plan(0, 0, 1))
        found.append((float(losses["loss"]), [p.grad for p in stepper.parameters]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_few_capacities_that_fit_every_batch():
    generator = np.random.default_rng(0)
    counts = np.minimum(generator.geometric(0.1, 5000), 50)
    shapes = FixedShapes.of(counts, 256)
    assert len(shapes.capacities) <= 8
    assert shapes.capacities[-1] >= np.sort(counts)[-256:].sum()
    drawn = [generator.permutation(counts)[:256].sum() for _ in range(200)]
    wasted = np.mean([shapes.capacity(each) / each for each in drawn]) - 1
    assert wasted < 0.06
    assert FixedShapes.of(np.full(5000, 50), 4096) is None
    assert FixedShapes.of(np.full(10, 5), 256) == FixedShapes(10, 5, (64,))
