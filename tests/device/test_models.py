"""Every model on the simulated devices: nothing that they refuse, no more kernels and waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.models.supports import Supports
from hasten.ops.graph import spmm_rows
from hasten.registry import load_model
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers import adam
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, ModelCase
from tests.device.measure import FIRST, SETTINGS, differing, measure
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


def assert_one_copy(found: dict[str, Recorder]) -> None:
    """A step waits for nothing, and gets its batch by one copy."""
    for name in (name for name in found if name.endswith(("step", "next"))):
        assert not found[name].waits, name
        assert not found[name].downloads, name
        assert found[name].uploads.total() <= 1, (name, found[name].uploads)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_no_more_kernels_copies_and_synchronizations_than_before(case):
    """Nor a phase whose steps have become unlike each other.

    Where more of them are meant: python -m tests.device.table.
    """
    with simulated("cuda") as device:
        found = measure(case, device)
    assert not {name: each.mistakes for name, each in found.items() if each.mistakes}
    assert not exceeded(case, found)
    assert_one_copy(found)
    unlike = differing(found)
    assert unlike.keys() <= set(read()["differing"][case.label]), unlike


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.model)
def test_mixed_precision_waits_no_more(case):
    """Autocast, casts of products and the loss scaler of fp16."""
    with simulated("cuda") as device:
        found = measure(case, device, "fp16")
    assert not {name: each.mistakes for name, each in found.items() if each.mistakes}
    assert_one_copy(found)
    assert not [told for told in exceeded(case, found) if " kernels, " not in told]


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST.keys())
def test_nothing_that_mps_refuses(case):
    """No tensor of the host among those of the device, no float64 and no missing operator."""
    with simulated("mps") as device:
        found = measure(case, device)
    assert not {name: each.mistakes for name, each in found.items() if each.mistakes}


#: whose steps are arranged differently on a GPU, of which launches are few
ARRANGED = [
    "sasrec-ce", "bprmf", "lightgcn", "kgat", "kgat-gcn", "mmgcn", "freedom", "dragon", "conve",
    "hgt", "hgt-edges",
]  # fmt: skip
#: read rows of a graph, of which more entries than these are too many to visit all
ROWS = [(label, 0) for label in ("lightgcn", "kgat", "mmgcn", "freedom", "dragon")]


@pytest.mark.parametrize(
    ("label", "visited"), [*((label, spmm_rows.MAX_VISITED_ENTRIES) for label in ARRANGED), *ROWS]
)
def test_gradients_are_those_of_the_cpu(label, visited, monkeypatch):
    monkeypatch.setattr(spmm_rows, "MAX_VISITED_ENTRIES", visited)
    case = next(case for case in CASES if case.label == label)
    expected = gradients(case, torch.device("cpu"))
    with simulated("cuda") as device:
        found = gradients(case, device)
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).norm()) <= 1e-5 * float(other.norm()) + 1e-7


def gradients(case: ModelCase, device: torch.device) -> list[torch.Tensor]:
    """Of a batch of every phase, in fp32."""
    config = build_config(
        case.model, None, None, (), {**SETTINGS, **case.settings, **case.without_dropout}
    )
    data = load_data(config, case.data)
    torch.manual_seed(0)
    model, found = build_model(config, data, torch.device("cpu")).to(device).train(), []
    for number, phase in enumerate(model.phases(data, config.training)):
        precision = Precision("fp32", device)
        stepper = OptimizerStep(
            phase, number, config.training, precision, DataParallelRank(), device
        )
        phase.start_epoch(0, 0)
        stepper.accumulate(phase.plan(0, 0, 0))
        grads = [torch.zeros(0) if p.grad is None else p.grad.cpu() for p in phase.parameters()]
        found += [each.double() for each in grads]
        stepper.zero_grad()
    return found


def test_more_relations_take_the_translations_of_kgat_no_more_kernels(tmp_path):
    counts = []
    for relations in (1, 12):
        facts = tmp_path / f"{relations}.tsv"
        lines = [f"{item}\tis {item % relations}\tkind {item % 3}\n" for item in range(30)]
        facts.write_text("".join(lines))
        case = FIRST["kgat"]
        case = replace(case, settings={**case.settings, "data.kg": str(facts)})
        with simulated("cuda") as device:
            found = measure(case, device)
        counts.append(found["translation.step"].kernels)
    assert counts[0] == counts[1]


def test_more_relations_take_hgt_no_more_kernels():
    counts = []
    for relations in (2, 5):
        ring = {f"near {number}": (-1, 1) for number in range(relations)}
        with simulated("cuda") as device:
            found = measure(replace(FIRST["hgt"], ring=ring), device)
        counts.append(found["step"].kernels)
    assert counts[0] == counts[1]


def test_an_item_in_the_step_exceeds_the_counts(monkeypatch):
    plain = adam.gradient_norm

    def read_norm(parameters: list[torch.Tensor], kind: float) -> torch.Tensor:
        norm = plain(parameters, kind)
        assert norm.item() >= 0
        return norm

    monkeypatch.setattr(adam, "gradient_norm", read_norm)
    with simulated("cuda") as device:
        found = measure(FIRST["distmult"], device)
    (told,) = exceeded(FIRST["distmult"], found)
    assert "synchronizations" in told
    assert "_local_scalar_dense at training/optimizers/adam.py" in told
