"""Row-wise Adam on a simulated CUDA device: the result of dense Adam, without synchronizations."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch, Term
from hasten.ops.table_rows import TableRows, with_other_rows
from hasten.training.capture.step import refusal
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers import device_missed_steps, row_adam
from hasten.training.optimizers.device_row_adam import DeviceRowAdam
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES
from tests.device.measure import BY_ROWS, build, read_by_rows
from tests.device.recorder import Recorder, difference, recording
from tests.device.simulation import simulated
from tests.training.optimizers.test_row_adam import READ, ROWS, STEPS, FewRows, rate, walk

CPU = torch.device("cpu")


class Drawn(FewRows):
    """:class:`FewRows` whose steps have the same shapes: it gathers further rows."""

    no_capture_reason = None

    def __init__(self, model: nn.Module, by_rows: bool) -> None:
        super().__init__(model)
        self.table = TableRows(
            model.weight, self.read, READ, on_device=self.on_device if by_rows else None
        )

    def read(self, batch: Batch) -> torch.Tensor:
        rows = super().read(batch).numpy()
        return torch.from_numpy(with_other_rows(rows, READ, ROWS))

    def encode_inputs(self, batch: Batch) -> torch.Tensor:
        return self.read(batch)

    def term_inputs(self, batch: Batch, ids: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(self.read(batch), self.drawn(batch, ids))

    def encode(self, batch: Batch) -> Any:
        return (functional.embedding(self.on_device(batch), self.model.weight),)

    def terms(self, encoded: Any, batch: Batch, ids: torch.Tensor) -> Any:
        target = self.model.target * (math.nan if batch.index == self.poison else 1.0)
        drawn = encoded[0].index_select(0, self.on_device(batch, ids))
        return [Term("loss", (drawn - target).square().sum(), batch.denominators["rows"])]


def made(
    device: torch.device, by_rows: bool = True, dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[nn.Module, OptimizerStep]:
    """On the CPU too, where the arithmetic of the device's optimizer takes less time to test."""
    torch.manual_seed(3)
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(ROWS, 5, dtype=dtype).to(device))
    model.target = nn.Parameter(torch.randn(5, dtype=dtype).to(device))
    training, precision = TrainingOptions(**options), Precision("fp32", device)
    phase = Drawn(model, by_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", ROWS if device.type == "cpu" else 4)
        step = OptimizerStep(phase, 0, training, precision, DataParallelRank(), device)
    if by_rows and device.type == "cpu":
        step.optimizer = DeviceRowAdam(phase.parameters(), training, phase.table)
    assert isinstance(step.optimizer, DeviceRowAdam) == by_rows
    return model, step


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().cpu() for name, each in model.named_parameters()}


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5}, {"accumulate": 2}])
def test_the_result_is_that_of_a_dense_adam(options):
    ours, step = made(CPU, **options)
    dense, plain = made(CPU, by_rows=False, **options)
    for each in (step, plain):
        each.phase.poison = 20  # a step that is left out counts on neither side
        walk(each)
        assert int(each.nonfinite_steps) == 2
    for name, value in weights(dense).items():
        torch.testing.assert_close(weights(ours)[name], value, rtol=1e-11, atol=1e-13)
    mine, settled = step.optimizer.tensors()
    theirs, _ = plain.optimizer.tensors()
    assert mine.keys() - theirs.keys() == {"1.pending_steps"}
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-10, atol=1e-16, check_dtype=False)
    assert all(torch.equal(parameter, value) for parameter, value in settled.items())


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.98)])
def test_many_steps_in_float32_are_those_of_a_dense_adam_in_float64(betas):
    """Also with steps left out early, where the host counts more steps than were taken."""
    found = {}
    for by_rows, dtype in ((True, torch.float32), (False, torch.float32), (False, torch.float64)):
        model, step = made(CPU, by_rows, dtype, betas=betas)
        for index in (0, 1, 2, 4, 5, 7):
            step.phase.poison = index
            step(step.phase.plan(0, 0, index), 1e-2)
        step.phase.poison = None
        walk(step, epochs=6, begin=(0, 8))
        found[by_rows, dtype] = weights(model)["weight"].double()
    exact = found[False, torch.float64]
    dense = float((found[False, torch.float32] - exact).abs().max())
    rows = float((found[True, torch.float32] - exact).abs().max())
    assert rows <= 2 * dense, (rows, dense)


@pytest.mark.parametrize("stop", [(0, 3), (0, 40), (1, 0), (1, 33)])
def test_what_is_saved_in_the_middle_goes_on_bit_for_bit(stop):
    """After a step that was left out: the host counts a step more than the device from then on."""
    whole, step = made(CPU, dtype=torch.float32)
    step.phase.poison = 2
    walk(step)
    cut, step = made(CPU, dtype=torch.float32)
    step.phase.poison = 2
    walk(step, stop=stop)
    held, settled = step.optimizer.tensors()
    held = copy.deepcopy(held)
    stored = {**cut.state_dict(), "weight": settled[cut.weight].clone()}
    assert any(name.endswith("pending_weight") for name in held) == (stop[1] > 0)

    again, step = made(CPU, dtype=torch.float32)
    step.phase.poison = 2
    again.load_state_dict(stored)
    step.optimizer.load(copy.deepcopy(held))
    walk(step, begin=stop)
    assert all(torch.equal(value, whole.state_dict()[n]) for n, value in again.state_dict().items())


@pytest.mark.parametrize("to_device", [True, False])
def test_the_checkpoint_of_a_gpu_serves_a_cpu_and_the_other_way_round(to_device):
    def on_cpu() -> tuple[nn.Module, OptimizerStep]:
        model, step = made(CPU)
        step.optimizer = RowAdam(step.phase.parameters(), step.options, step.phase.table)
        return model, step

    first, second = (on_cpu, partial(made, CPU)) if to_device else (partial(made, CPU), on_cpu)
    expected, step = made(CPU, by_rows=False)
    walk(step)
    cut, step = first()
    walk(step, stop=(0, 40))
    held, settled = step.optimizer.tensors()
    stored = {**cut.state_dict(), "weight": settled[cut.weight].clone()}
    again, step = second()
    again.load_state_dict(stored)
    step.optimizer.load(copy.deepcopy(held))
    walk(step, begin=(0, 40))
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=1e-10, atol=1e-12)


@pytest.fixture
def device():
    with simulated("cuda") as found:
        yield found


def test_steps_are_the_same_operations_and_wait_for_nothing(device, monkeypatch):
    _, step = made(device)
    step.phase.poison = 20
    walk(step, stop=(0, 25))
    found = []
    for index in range(25, 34):
        step.optimizer.set_rate(rate(index))
        with recording() as taken:
            step.eager(step.phase.plan(0, 0, index))
        assert not taken.waits
        assert not taken.mistakes
        assert taken.uploads.total() == 1
        found.append(taken)
    assert all(difference(found[0], other) is None for other in found[1:])
    # the sums are full: all rows are brought up to date, without waiting either
    monkeypatch.setattr(device_missed_steps, "_STEPS", 8)
    with recording() as taken:
        step(step.phase.plan(0, 0, 34), 1e-2)
    assert not taken.waits
    assert taken.kernels.total() > found[0].kernels.total()
    # the same as on the CPU, of which the other tests are
    model, step = made(device, dtype=torch.float32)
    walk(step, stop=(0, 4))
    other, step = made(CPU, dtype=torch.float32)
    walk(step, stop=(0, 4))
    for name, value in weights(other).items():
        torch.testing.assert_close(weights(model)[name], value, rtol=1e-6, atol=1e-7)


def test_a_shape_gets_rows_that_are_not_among_them():
    for rows in ([], [0, 1, 4], [57, 58, 59], [3]):
        padded = with_other_rows(np.array(rows, np.int64), 5, ROWS)
        assert len(np.unique(padded)) == 5
        assert np.isin(rows, padded).all()
        assert (np.diff(padded) > 0).all()
    assert STEPS > 34


#: kernels of a step of a batch, with dense and with row-wise Adam
KERNELS = {"sasrec-sampled-softmax": (146, 201), "kgat": (62, 119), "bprmf": (50, 106)}


def epoch(label: str, device: torch.device) -> tuple[list[torch.Tensor], list[Recorder]]:
    """The weights after an epoch of the last phase, and its steps without the host's own."""
    case = next(case for case in CASES if case.label == label)
    config, *_, steppers = build(case, device, **case.without_dropout)
    stepper, taken = steppers[-1], []
    refusal(stepper, config.training)
    stepper.phase.start_epoch(0, 0)
    for index in range(stepper.phase.steps()):
        stepper.optimizer.set_rate(rate(index))
        with recording() as found:
            stepper.eager(stepper.phase.plan(0, 0, index))
        taken.append(found)
    stepper.optimizer.flush()
    return [each.detach().cpu() for each in stepper.parameters], taken[:-1]


@pytest.mark.parametrize("label", BY_ROWS)
def test_models_by_rows_train_what_they_train_with_a_dense_adam(label, device, monkeypatch):
    expected, dense = epoch(label, device)
    read_by_rows(monkeypatch)
    found, taken = epoch(label, device)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    kernels = tuple(each[-1].kernels.total() for each in (dense, taken))
    assert all(n <= most for n, most in zip(kernels, KERNELS[label], strict=True)), kernels
    for each in taken:
        assert not each.waits
        assert not each.mistakes
        assert each.uploads.total() == 1
    if label != "sasrec-sampled-softmax":  # whose batches have one of several layouts
        assert all(difference(taken[1], other) is None for other in taken[2:])
