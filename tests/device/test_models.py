"""Every model on the simulated devices: nothing that a real device would refuse."""

from __future__ import annotations

import pytest

from tests.contract.cases import CASES
from tests.device.measure import measure
from tests.device.simulation import simulated


@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_nothing_that_a_device_refuses(case, kind):
    """No tensor of the host among those of the device, no float64 nor missing operator on MPS."""
    with simulated(kind) as device:
        found = measure(case, device)
    assert not {name: each.mistakes for name, each in found.items() if each.mistakes}
