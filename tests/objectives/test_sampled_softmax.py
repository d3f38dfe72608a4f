"""The phase of the sampled softmax: its equations, its layouts, and what it costs."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.config import TrainingOptions
from hasten.data.tables import Histories
from hasten.models.interface import Sizes
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.optimizers import row_adam
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.models.sequential.equations import LENGTH, build, random_histories, reference_states

CPU = torch.device("cpu")


def phase_of(model, histories, batch_size=9):
    if isinstance(model, TiSASRec):
        histories = personal_times(histories, LENGTH, unseen=1)
    return model.next_item_phase(histories, TrainingOptions(batch_size=batch_size))


def gradients(model, phase, parts=1):
    """The loss and the gradients of all parameters, summed over micro-batches."""
    model.zero_grad()
    batch, total = phase.plan(3, 1, 0), 0.0
    encoded = phase.encode(batch)
    for part in range(parts):
        (term,) = phase.terms(encoded, batch, batch.micro_batch_ids(part, parts))
        term.numerator.backward(retain_graph=True)
        total += term.numerator.item()
    return total, {name: value.grad.clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("mask_known", [False, True])
@pytest.mark.parametrize(
    ("kind", "sampling"),
    [*product([SASRec], ["uniform", "in-batch", "mixed"]), (TiSASRec, "mixed")],
)
def test_loss_and_gradients_are_those_of_the_equations(kind, sampling, mask_known):
    histories = random_histories()
    options = {"negatives": 8, "sampling": sampling, "mask_known": mask_known, "heads": 2}
    model = build(kind, loss="sampled-softmax", **options)
    phase = phase_of(model, histories)
    ours, ours_grads = gradients(model, phase)
    batch = phase.plan(3, 1, 0)
    sample = phase.drawn(batch)[1]
    expected = torch.zeros((), dtype=torch.float64)
    for user in phase.users[batch.ids.numpy()]:
        row = slice(histories.offsets[user], histories.offsets[user + 1])
        items, times = histories.items[row][-LENGTH - 1 :], histories.times[row][-LENGTH - 1 :]
        states = reference_states(model, items[:-1], times[:-1].tolist())
        for state, target in zip(states, items[1:], strict=True):
            scores = model.items.weight @ state
            left_out = histories.items[row] if mask_known else [target]
            others = sum(
                torch.exp(scores[item]) * np.exp(weight)
                for item, weight in zip(sample.items, sample.log_weights, strict=True)
                if item not in left_out
            )
            own = torch.exp(scores[target])
            expected = expected - torch.log(own / (own + others))
    assert ours == pytest.approx(expected.item(), rel=1e-10)
    names, parameters = zip(*model.named_parameters(), strict=True)
    for name, b in zip(names, torch.autograd.grad(expected, parameters), strict=True):
        torch.testing.assert_close(ours_grads[name], b, rtol=1e-8, atol=1e-10, msg=name)


@pytest.mark.parametrize("sampling", ["uniform", "in-batch", "mixed"])
def test_any_number_of_micro_batches_gives_the_same_gradients(sampling):
    histories = random_histories(users=20)
    model = build(SASRec, loss="sampled-softmax", negatives=6, sampling=sampling)
    phase = phase_of(model, histories, batch_size=20)
    whole, expected = gradients(model, phase)
    for parts in (2, 5):
        total, found = gradients(model, phase, parts)
        assert total == pytest.approx(whole, rel=1e-12)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11, msg=name)


def many_items(items, users=40, width=8, dtype=torch.float32):
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 12, users)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    histories = Histories(offsets, generator.integers(0, items, lengths.sum()))
    options = SASRecOptions(
        width=width, max_length=8, dropout=0.0, loss="sampled-softmax", sampling="mixed"
    )
    torch.manual_seed(0)
    model = SASRec(options, Sizes(users=users, items=items)).to(dtype)
    training = TrainingOptions(batch_size=10, betas=(0.9, 0.98), clip_norm=5.0)
    phase = model.next_item_phase(histories, training)
    return model, OptimizerStep(phase, 0, training, Precision("fp32", CPU), DataParallelRank(), CPU)


def test_rows_of_a_large_table_are_trained_as_by_a_dense_adam(monkeypatch):
    ours, step = many_items(3000, dtype=torch.float64)
    assert isinstance(step.optimizer, RowAdam)
    monkeypatch.setattr(row_adam, "MIN_TABLE_TO_READ_RATIO", 3000)
    dense, plain = many_items(3000, dtype=torch.float64)
    assert not isinstance(plain.optimizer, RowAdam)
    for each, (epoch, index) in product((step, plain), product(range(3), range(4))):
        each(each.phase.plan(0, epoch, index), 1e-2)
    for name, value in dense.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-9, atol=1e-11, msg=name)


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operation makes."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        found = function(*arguments, **(named or {}))
        if isinstance(found, torch.Tensor) and not function.is_view and "_." not in str(function):
            self.elements = max(self.elements, found.numel())
        return found


@pytest.mark.parametrize("items", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_nothing_that_a_step_makes_grows_with_the_catalog(items):
    _, step = many_items(items)
    step(step.phase.plan(0, 0, 0), 1e-3)
    batch = step.phase.plan(0, 0, 1)
    with Largest() as largest:
        step(batch, 1e-3)
    targets, negatives = batch.denominators["targets"], 256
    # the logits, or the rows that are read
    assert largest.elements <= targets * max(negatives, step.phase.model.options.width * 4)
    assert largest.elements < items
