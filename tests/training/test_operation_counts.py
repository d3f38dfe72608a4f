"""Operations of a training step, counted: a step that does more shows on a busy machine too.

Views are not counted, nor is what numpy does. Where a change of the counts is meant, take the new
ones from the message of the failed test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bench.guards import plain_step
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.objectives.base import Batch
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES

CPU = torch.device("cpu")
#: copies, and conversions to another type or device
COPIES = {"aten::copy_", "aten::_to_copy", "aten::clone"}
#: on a GPU the host waits for their result
SYNCHRONIZATIONS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"}
#: of the second step of every phase: operations, copies, host synchronizations
EXPECTED = {
    "sasrec-ce": (194, 7, 0),
    "sasrec-ligr": (292, 25, 0),
    "sasrec-sampled-softmax": (250, 9, 0),
    "sasrec-mhc": (1644, 36, 4),
    "tisasrec-ce": (296, 26, 0),
    "bprmf": (138, 0, 2),
    "lightgcn": (169, 0, 2),
    "kgat": (453, 6, 4),
    "mmgcn": (410, 0, 2),
    "dragon": (193, 0, 2),
    "conve": (883, 13, 2),
    "distmult": (54, 1, 0),
    "hgt": (1105, 131, 0),
}


class Operations(TorchDispatchMode):
    """Counts the operations that are dispatched within it, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if not function.is_view:
            self.calls[function._schema.name] += 1
        return function(*arguments, **(named or {}))


#: of these, the most that the guards of a step add: norm, finite checks, counters, loss terms
GUARDS = 16


def operations_of_a_step(
    label: str, take: Callable[[OptimizerStep, Batch, float], object] = OptimizerStep.__call__
) -> Counter[str]:
    """The operations of the second step of every phase of a model of the contract suite."""
    case = next(case for case in CASES if case.label == label)
    settings = {"training.batch_size": 16, **case.settings}
    config = build_config(case.model, None, None, (), settings)
    data = load_data(config, case.data)
    torch.manual_seed(0)
    model = build_model(config, data, CPU).train()
    total: Counter[str] = Counter()
    for number, phase in enumerate(model.phases(data, config.training)):
        precision = Precision("fp32", CPU)
        step = OptimizerStep(phase, number, config.training, precision, DataParallelRank(), CPU)
        phase.start_epoch(0, 0)
        take(step, phase.plan(0, 0, 0), 1e-3)
        batch = phase.plan(0, 0, 1)
        with Operations() as operations:
            take(step, batch, 1e-3)
        total += operations.calls
    return total


@pytest.mark.parametrize("label", EXPECTED)
def test_a_step_takes_as_many_operations_as_before(label):
    calls = operations_of_a_step(label)
    copies = sum(calls[name] for name in COPIES)
    synchronizations = sum(calls[name] for name in SYNCHRONIZATIONS)
    told = f"{label}: {(calls.total(), copies, synchronizations)}\n{calls}"
    expected = EXPECTED[label]
    assert calls.total() == pytest.approx(expected[0], rel=0.03), told
    assert copies == pytest.approx(expected[1], rel=0.03, abs=1), told
    assert synchronizations == expected[2], told


@pytest.mark.parametrize(
    ("label", "phases"), [("sasrec-ce", 1), ("kgat", 2), ("conve", 1), ("hgt", 1)]
)
def test_the_guards_of_a_step_add_few_operations(label, phases):
    guarded, plain = operations_of_a_step(label), operations_of_a_step(label, plain_step)
    added = guarded - plain
    assert 0 < added.total() <= GUARDS * phases, added
    assert sum(added[name] for name in SYNCHRONIZATIONS) <= phases, added
