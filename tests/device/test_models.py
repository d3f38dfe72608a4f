"""Every model on the simulated devices: nothing that they refuse, no more kernels and waits."""

from __future__ import annotations

import pytest
import torch

from hasten.models.supports import Supports
from hasten.registry import load_model
from hasten.training import step
from tests.contract.cases import CASES, ModelCase
from tests.device.measure import FIRST, differing, measure
from tests.device.recorder import Recorder
from tests.device.simulation import simulated
from tests.device.table import read

COUNTED = ("kernels", "copies to the device", "copies to the host", "synchronizations")

#: whose arithmetic training.precision changes
MIXED = [
    case for name, case in FIRST.items() if case.trains and Supports.of(load_model(name)).precision
]


def exceeded(case: ModelCase, found: dict[str, Recorder]) -> list[str]:
    """The figures above those of counts.json, each with what caused it."""
    told, most_of = [], read()["now"].get(case.label)
    if most_of is None:
        return [f"{case.label} is not counted yet: run python -m tests.device.table"]
    for stage, most in most_of.items():
        causes = found[stage].kernels, found[stage].uploads, found[stage].downloads
        figures = found[stage].figures().values()
        for name, one, limit, cause in zip(
            COUNTED, figures, most, (*causes, found[stage].waits), strict=True
        ):
            if one > limit:
                told.append(f"{stage}: {one} {name}, not {limit}: {dict(cause)}")
    return told


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_no_more_kernels_copies_and_synchronizations_than_before(case):
    """Nor a phase whose steps have become unlike each other.

    Where more of them are meant: python -m tests.device.table.
    """
    with simulated("cuda") as device:
        found = measure(case, device)
    assert not {name: each.mistakes for name, each in found.items() if each.mistakes}
    assert not exceeded(case, found)
    unlike = differing(found)
    assert unlike.keys() <= set(read()["differing"][case.label]), unlike


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.model)
def test_mixed_precision_waits_no_more(case):
    """Autocast, casts of products and the loss scaler of fp16."""
    with simulated("cuda") as device:
        found = measure(case, device, "fp16")
    assert not {name: each.mistakes for name, each in found.items() if each.mistakes}
    assert not [told for told in exceeded(case, found) if " kernels, " not in told]


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST.keys())
def test_nothing_that_mps_refuses(case):
    """No tensor of the host among those of the device, no float64 and no missing operator."""
    with simulated("mps") as device:
        found = measure(case, device)
    assert not {name: each.mistakes for name, each in found.items() if each.mistakes}


def test_an_item_in_the_step_exceeds_the_counts(monkeypatch):
    plain = step.gradient_norm

    def read_norm(parameters: list[torch.Tensor]) -> torch.Tensor:
        norm = plain(parameters)
        assert norm.item() >= 0
        return norm

    monkeypatch.setattr(step, "gradient_norm", read_norm)
    with simulated("cuda") as device:
        found = measure(FIRST["distmult"], device)
    (told,) = exceeded(FIRST["distmult"], found)
    assert "synchronizations" in told
    assert "_local_scalar_dense at training/step.py" in told
