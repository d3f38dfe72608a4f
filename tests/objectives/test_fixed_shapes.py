"""Batches whose shapes repeat: loss and gradients are those without padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hasten.objectives import links
from hasten.objectives.fixed_shapes import FixedShapes
from hasten.objectives.triple_examples import KvsAllExamples
from hasten.ops.graph.csr import CSR
from hasten.ops.losses import catalog_loss, one_to_many_loss
from hasten.scoring import TripleQueries
from tests.contract.cases import CASES, ModelCase, sequences
from tests.device.measure import build
from tests.device.simulation import simulated

CPU = torch.device("cpu")


NEXT_ITEM = {
    "sasrec-ce": {},
    "sasrec-bce-post": {},
    "sasrec-gbce": {},
    "tisasrec-ce": {},
    "tisasrec-bce": {},
    "sasrec-sampled-softmax": {},
    "tisasrec-features": {},
}
KNOWN = {"model.mask_known": True}


class ManyItems(ModelCase):
    """A case whose batches read some of the items."""

    @property
    def data(self):
        return sequences(items=400)


@pytest.mark.parametrize(
    ("label", "settings"), [*NEXT_ITEM.items(), ("sasrec-sampled-softmax", KNOWN)]
)
def test_padding_changes_neither_the_loss_nor_the_gradients(label, settings):
    case = ManyItems(**vars(next(case for case in CASES if case.label == label)))
    found = []
    for fixed in (False, True):
        *_, model, (stepper,) = build(case, CPU, **case.without_dropout, **settings)
        model.double()
        if fixed:
            stepper.phase.fix_shapes()
            stepper.phase.fixed = FixedShapes(16, 12, (256,))  # more than any batch has
        losses = stepper.accumulate(stepper.phase.plan(0, 0, 1))
        found.append((float(losses["loss"]), [p.grad for p in stepper.parameters]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


#: other numbers of answers: 1 and 3 of a query for tails, 1 and 3 of one for heads
UNEVEN = {"next": (1,), "near": (-1, 1, 2)}
TRIPLES = {
    "conve": {},
    "distmult": {"model.loss": "1-n-softmax", "model.label_smoothing": 0.1},
    "complex-n3": {"model.loss": "1-n"},
    "tucker": {"model.loss": "1-n-softmax"},
    "complex-sampled-softmax": {"model.relation_weight": 0.5},
}


@pytest.mark.parametrize("label", TRIPLES)
@pytest.mark.parametrize("chunk", [None, 1, 4 * 30 * 7])
def test_padding_of_answers_changes_neither_the_loss_nor_the_gradients(label, chunk, monkeypatch):
    """Also where scores are computed in chunks of entities (1) or of 7 queries."""
    if chunk:
        monkeypatch.setattr(one_to_many_loss, "CHUNK_BYTES_CPU", chunk)
        monkeypatch.setattr(one_to_many_loss, "_MIN_CHUNK_ROWS", 7)
        monkeypatch.setattr(catalog_loss, "_MIN_CHUNK_ROWS", 7)
        monkeypatch.setattr(catalog_loss, "CHUNK_BYTES_CPU", chunk)
    case = next(case for case in CASES if case.label == label)
    found = []
    for fixed in (False, True):
        settings = {**case.without_dropout, **TRIPLES[label]}
        *_, model, (stepper,) = build(replace(case, ring=UNEVEN), CPU, **settings)
        model.double()
        if fixed:
            stepper.phase.fix_shapes()
            assert stepper.phase.no_capture_reason is None
            assert {1, 3} <= set(stepper.phase.data.answers.lengths)
        losses = stepper.accumulate(stepper.phase.plan(0, 0, 1))
        found.append((losses, [p.grad for p in stepper.parameters]))
    assert found[0][0].keys() == found[1][0].keys()
    for name, loss in found[0][0].items():
        torch.testing.assert_close(found[1][0][name], loss, rtol=1e-6, atol=0)
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


@pytest.mark.parametrize(
    "label", ["lightgcn", "kgat", "kgat-gcn", "mmgcn", "mmgcn-frozen", "bm3", "freedom", "dragon"]
)
def test_repeated_nodes_change_neither_the_loss_nor_the_gradients(label):
    """BM3 and FREEDOM also compute the features of items in the place of users."""
    case = next(case for case in CASES if case.label == label)
    found = []
    for fixed in (False, True):
        with simulated("cuda") as device:
            settings = {**case.without_dropout, "training.batch_size": 16}
            *_, steppers = build(case, device, **settings)
            stepper = steppers[0]
            if fixed:
                stepper.phase.fix_shapes()
                assert stepper.phase.no_capture_reason is None
            stepper.phase.start_epoch(0, 0)
            batch = stepper.phase.plan(0, 0, 1)
            losses = stepper.accumulate(batch)
            grads = [p.grad.cpu() for p in stepper.parameters if p.grad is not None]
            found.append([*(each.cpu() for each in losses.values()), *grads])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("own", [False, True])
def test_the_vectors_of_all_nodes_change_neither_the_loss_nor_the_gradients(own, layers, loss):
    """Batches of HGT have other numbers of links of each relation, and of distinct candidates."""
    case = next(case for case in CASES if case.label == "hgt")
    case = replace(case, ring={"next": (-1, 1), "near": (-2, -1, 1, 2)})
    settings = {"model.layers": layers, "model.loss": loss, "training.batch_size": 7}
    settings |= {"model.self_score": own, "model.relation_weights": "normal"}
    if not own:
        settings |= {"model.exclude_self": True, "model.shallow_width": 3, "model.n3": 0.1}
    found, padding = [], 0
    for fixed in (False, True):
        with simulated("cuda") as device:
            *_, model, (stepper,) = build(case, device, **case.without_dropout, **settings)
            model.double()
            phase = stepper.phase
            if fixed:
                phase.fix_shapes()
                assert phase.no_capture_reason is None
            steps = []
            for index in range(3):
                batch = phase.plan(0, 0, index)
                inputs = phase.term_inputs(batch, batch.ids)
                losses = stepper.accumulate(batch)
                grads = [p.grad.cpu() for p in stepper.parameters if p.grad is not None]
                steps.append([*(each.cpu() for each in losses.values()), *grads])
                stepper.zero_grad()
                if fixed:
                    padding += int((inputs.blocks.weight == 0).sum())
            found.append(steps)
    assert padding
    for unpadded, padded in zip(*found, strict=True):
        for one, other in zip(unpadded, padded, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12, check_dtype=False)


def test_a_batch_of_far_more_answers_than_usual_is_not_padded():
    """The graph of the longest batch would take the memory of all answers of the longest query."""
    counts = np.ones(1000, np.int64)
    counts[0] = 5000
    phase = KvsAllExamples.__new__(KvsAllExamples)
    phase.softmax = False
    phase.queries = TripleQueries(np.arange(1000), np.zeros(1000, np.int64))
    phase.answers = CSR(np.r_[0, counts.cumsum()], np.arange(counts.sum()))
    phase.fix_shapes(100)
    assert max(phase.fixed[1]) <= 4 * counts.mean() * 100 < 5099
    padded, longest = (phase.inputs(None, np.arange(first, first + 100)) for first in (1, 0))
    assert padded.weight is not None
    assert len(padded.answer) in phase.fixed[1]
    assert longest.weight is None
    assert len(longest.answer) == 5099


def test_a_last_layer_that_reads_few_messages_is_not_computed_for_all_nodes(monkeypatch):
    monkeypatch.setattr(links, "MIN_READ_SHARE", 1.01)
    case = next(case for case in CASES if case.label == "hgt")
    with simulated("cuda") as device:
        *_, (stepper,) = build(case, device)
        stepper.phase.fix_shapes()
    assert stepper.phase.no_capture_reason.startswith("the last layer would have")
    assert not stepper.phase.fixed
