"""Adam of few rows of a table: the dense one's result, also where it is stopped in the middle."""

from __future__ import annotations

import copy
import math
import shutil

import pytest
import torch
from torch import nn

from hasten import run
from hasten.config import TrainingOptions
from hasten.objectives.base import Batch, Phase, Term
from hasten.ops.random import Stream, integers, key
from hasten.ops.table_rows import TableRows
from hasten.runs.checkpoint import read_checkpoint
from hasten.testing import fingerprint
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.nonfinite import first_nonfinite_tensor
from hasten.training.optimizers import row_adam
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES
from tests.contract.test_models import train

CPU = torch.device("cpu")
ROWS, READ, STEPS = 60, 3, 60


class FewRows(Phase):
    """Draws a few rows of a table towards a vector that is trained too."""

    name = "few"

    def __init__(self, model: nn.Module) -> None:
        self.model, self.poison = model, None
        self.table = TableRows(model.weight, self.read, READ)

    def steps(self) -> int:
        return STEPS

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        return Batch(torch.arange(READ) + index * READ, seed, epoch, index, {"rows": float(READ)})

    def drawn(self, batch: Batch, ids: torch.Tensor) -> torch.Tensor:
        # the first rows often, the last ones never
        return integers(1 + ids % (ROWS - 5), key(batch.seed, Stream.POSITIVES, batch.epoch), ids)

    def read(self, batch: Batch) -> torch.Tensor:
        return torch.unique(self.drawn(batch, batch.ids))

    def encode(self, batch: Batch):
        return (self.model.weight.index_select(0, self.read(batch)),)

    def terms(self, encoded, batch: Batch, ids: torch.Tensor):
        place = torch.searchsorted(self.read(batch), self.drawn(batch, ids))
        target = self.model.target * (math.nan if batch.index == self.poison else 1.0)
        loss = (encoded[0][place] - target).square().sum()
        return [Term("loss", loss, batch.denominators["rows"])]

    def parameters(self):
        return [self.model.target, self.model.weight]

    def examples(self, batch: Batch) -> int:
        return len(batch.ids)


def made(dtype=torch.float64, **options):
    torch.manual_seed(3)
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(ROWS, 5, dtype=dtype))
    model.target = nn.Parameter(torch.randn(5, dtype=dtype))
    training = TrainingOptions(**options)
    step = OptimizerStep(
        FewRows(model), 0, training, Precision("fp32", CPU), DataParallelRank(), CPU
    )
    return model, step


def rate(index: int) -> float:
    return 1e-2 * (1 + index % 7) / 7


def walk(step, epochs=2, begin=(0, 0), stop=None):
    for epoch in range(begin[0], epochs):
        for index in range(begin[1] if epoch == begin[0] else 0, STEPS):
            if (epoch, index) == stop:
                return
            step(step.phase.plan(0, epoch, index), rate(index))


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5}, {"accumulate": 2}])
def test_the_result_is_that_of_a_dense_adam(monkeypatch, options):
    ours, step = made(**options)
    assert isinstance(step.optimizer, RowAdam)
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", ROWS)
    dense, plain = made(**options)
    assert not isinstance(plain.optimizer, RowAdam)
    for each in (step, plain):
        each.phase.poison = 20  # a step that is left out counts on neither side
        walk(each)
        assert int(each.nonfinite_steps) == 2
    for name, value in dense.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-11, atol=1e-13)
    mine, settled = step.optimizer.tensors()
    theirs, _ = plain.optimizer.tensors()
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-10, atol=1e-16, check_dtype=False)
    assert all(torch.equal(parameter, value) for parameter, value in settled.items())


def test_losses_are_those_of_a_dense_adam_at_every_step(monkeypatch):
    _, step = made()
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", ROWS)
    _, plain = made()
    for index in range(STEPS):
        batch = step.phase.plan(0, 0, index)
        a, b = (float(each(batch, rate(index))["loss"]) for each in (step, plain))
        assert a == pytest.approx(b, rel=1e-12)


@pytest.mark.parametrize("stop", [(0, 3), (0, 40), (1, 0), (1, 33)])
def test_what_is_saved_in_the_middle_goes_on_bit_for_bit_and_is_what_a_dense_adam_has(
    monkeypatch, stop
):
    whole, step = made()
    walk(step)
    cut, step = made()
    walk(step, stop=stop)
    held, settled = step.optimizer.tensors()
    held = copy.deepcopy(held)
    weights = {**cut.state_dict(), "weight": settled[cut.weight].clone()}
    assert any(name.endswith("pending_weight") for name in held) == (stop[1] > 0)

    again, step = made()
    again.load_state_dict(weights)
    step.optimizer.load(copy.deepcopy(held))
    walk(step, begin=stop)
    assert all(torch.equal(value, whole.state_dict()[n]) for n, value in again.state_dict().items())

    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", ROWS)
    dense, plain = made()
    dense.load_state_dict(weights)
    plain.optimizer.load(held)
    walk(plain, begin=stop)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(dense.state_dict()[name], value, rtol=1e-10, atol=1e-12)


def test_a_dense_adam_can_be_gone_on_with(monkeypatch):
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", ROWS)
    dense, plain = made()
    walk(plain, stop=(0, 30))
    held, weights = copy.deepcopy(plain.optimizer.tensors()[0]), copy.deepcopy(dense.state_dict())
    walk(plain, begin=(0, 30))
    monkeypatch.undo()
    ours, step = made()
    ours.load_state_dict(weights)
    step.optimizer.load(held)
    walk(step, begin=(0, 30))
    for name, value in dense.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-10, atol=1e-12)


def test_float32_stays_within_rounding(monkeypatch):
    ours, step = made(torch.float32)
    walk(step)
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", ROWS)
    dense, plain = made(torch.float32)
    walk(plain)
    torch.testing.assert_close(ours.weight, dense.weight, rtol=1e-5, atol=2e-6)


def test_the_last_step_of_a_phase_brings_all_rows_up_to_date():
    model, step = made()
    for index in range(STEPS):
        step(step.phase.plan(0, 0, index), 1e-2)
        assert step.optimizer.pending == (index < STEPS - 1)
    step.phase.poison = STEPS - 1  # also where it is left out
    for index in range(STEPS):
        step(step.phase.plan(0, 1, index), 1e-2)
    assert not step.optimizer.pending
    assert step.optimizer.tensors()[1][model.weight].data_ptr() == model.weight.data_ptr()


def test_a_bad_gradient_of_rows_is_named():
    model, step = made()
    step(step.phase.plan(0, 0, 0), 1e-2)
    terms = step.phase.terms

    def bad(encoded, batch, rows):
        (term,) = terms(encoded, batch, rows)
        return [Term("loss", term.numerator + torch.sqrt(encoded[0] * 0).sum(), term.denominator)]

    step.phase.terms = bad
    found = first_nonfinite_tensor(step, step.phase.plan(0, 0, 1), model)
    assert found == "gradient of weight"


@pytest.mark.parametrize(
    "options", [{"weight_decay": 1e-4}, {"betas": (0.9995, 0.999)}, {"optimizer": "adamw"}]
)
def test_what_is_no_longer_the_dense_result_is_left_to_the_dense_adam(options):
    assert isinstance(made(**options)[1].optimizer, RowAdam) == ("optimizer" in options)


#: the models with a table of which a step reads few rows, that table, and the phase
BY_ROWS = [("kgat", "nodes.weight", 1), ("sasrec-sampled-softmax", "items.weight", 0)]


@pytest.mark.parametrize(("label", "_table", "phase"), BY_ROWS)
def test_a_model_stopped_anywhere_in_its_phase_goes_on_bit_for_bit(
    label, _table, phase, monkeypatch, tmp_path
):
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", 1)
    case = next(case for case in CASES if case.label == label)
    settings = {"checkpoint__every_steps": 1, "checkpoint__keep": 500}
    train(case, tmp_path / "whole", **settings)
    expected = fingerprint(tmp_path / "whole")
    saved = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    places = [read_checkpoint(folder).state["position"] for folder in saved]
    within = [n for n, place in enumerate(places) if place["phase"] == phase and place["index"] > 0]
    assert len(within) > 4
    for stop in (within[0], within[len(within) // 2], within[-1]):
        copy_of = tmp_path / f"stopped-{stop}"
        shutil.copytree(tmp_path / "whole", copy_of)
        for later in saved[stop + 1 :]:
            shutil.rmtree(copy_of / "checkpoints" / later.name)
        run.resume(copy_of, quiet=True)
        assert fingerprint(copy_of) == expected


@pytest.mark.parametrize(("label", "table", "_phase"), BY_ROWS)
def test_a_model_by_rows_trains_what_it_trains_with_a_dense_adam(
    label, table, _phase, monkeypatch, tmp_path
):
    case = next(case for case in CASES if case.label == label)
    train(case, tmp_path / "dense")
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", 1)
    train(case, tmp_path / "rows")
    dense, rows = (
        read_checkpoint(tmp_path / name / "final").tensors["weights"] for name in ("dense", "rows")
    )
    assert not torch.equal(dense[table], rows[table])  # another order of rounding
    for name, value in dense.items():
        torch.testing.assert_close(rows[name], value, rtol=1e-4, atol=1e-5)
