"""Influences of events, by the scores' layer, against gradients of the item table written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hasten import api
from hasten.config_loading.build import build_config
from hasten.data.interactions.load import load_dataset
from hasten.data.tables import TRAIN, VALID
from hasten.influence.events import FactoredEvents
from hasten.influence.factored import FactoredSource
from hasten.influence.factors import Arithmetic
from hasten.influence.queries import Selection, part_of_events
from hasten.influence.run import Options, compute_influence
from hasten.influence.trace import Checkpoint, Limits, trace_self
from hasten.models.interface import Sizes
from hasten.objectives.base import Batch
from hasten.registry import load_model
from hasten.scoring import RecommenderQueries
from tests.contract.cases import sequences
from tests.influence.test_influence_triples import alone, found_matrix

ONCE = [Checkpoint("only", 0.5, lambda: None)]


def prepared(name: str, trained: str = "ce"):
    config = build_config(name, None, flags={
        "model.width": 8, "model.max_length": 4, "model.loss": trained})  # fmt: skip
    dataset = load_dataset(config.data, 0, sequences(9, 24))
    torch.manual_seed(1)
    model = load_model(name)(config.model, Sizes.of(dataset)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    return model, dataset, config


def source_of(model, dataset, config, loss, kept=None):
    users, items = part_of_events(dataset, "test")
    queries = RecommenderQueries(users, dataset.histories(TRAIN, VALID).take(users))
    phase = model.phases(dataset, config.training)[0]
    examples = FactoredEvents(model, phase, queries, items, loss, Arithmetic(), kept)
    return FactoredSource(examples, Arithmetic())


@pytest.mark.parametrize("loss", ["training", "positive"])
def test_events_of_sasrec(loss):
    model, dataset, config = prepared("sasrec")
    source = source_of(model, dataset, config, loss)
    matrix, own = expected(model, dataset, source, loss)
    for rows in (1, 9, 1000):
        limits = Limits(1 << 30, rows)
        torch.testing.assert_close(found_matrix(source, ONCE, limits), 0.5 * matrix)
        torch.testing.assert_close(trace_self(source, ONCE, limits=limits, **alone()), 0.5 * own)


@pytest.mark.parametrize(("name", "trained"), [("tisasrec", "ce"), ("sasrec", "bce")])
def test_events_of_other_models(name, trained):
    model, dataset, config = prepared(name, trained)
    loss = "training" if trained == "ce" else "positive"
    source = source_of(model, dataset, config, loss)
    matrix, own = expected(model, dataset, source, loss)
    limits = Limits(1 << 30, 7)
    torch.testing.assert_close(found_matrix(source, ONCE, limits), 0.5 * matrix)
    torch.testing.assert_close(trace_self(source, ONCE, limits=limits, **alone()), 0.5 * own)


def expected(model, dataset, source, loss):
    """Products and norms of gradients of the item table; states from the phase, by user."""
    table = model.items.weight.detach().clone().requires_grad_()

    def gradient(state, item):
        scores = table @ state.detach()
        value = (
            F.cross_entropy(scores[None], torch.tensor([item]))
            if loss == "training"
            else F.softplus(-scores[item])
        )
        return torch.autograd.grad(value, table)[0].flatten()

    source = source.examples
    phase, rows = source.phase, {}
    for number in range(len(phase.users)):
        batch = phase.lay_out(Batch(torch.tensor([number]), 0, 0, 0), np.array([number]))
        states = model.states(batch)
        user = phase.users[number]
        history = dataset.histories(TRAIN).take(np.array([user])).items
        targets = history[-len(states) :]
        assert targets.tolist() == batch.targets.tolist()
        first = len(history) - len(states)
        for place, (state, item) in enumerate(zip(states, targets.tolist(), strict=True)):
            rows[int(user), first + place] = gradient(state, item)
    users, items, places = source.events(np.arange(source.terms))
    assert len(rows) == source.terms
    train = torch.stack([rows[int(u), int(p)] for u, p in zip(users, places, strict=True)])
    held = dataset.histories(TRAIN)
    assert all(
        held.items[held.offsets[u] + p] == i for u, i, p in zip(users, items, places, strict=True)
    )
    tests = torch.stack(
        [
            gradient(model.query_vectors(source.queries.take(np.array([row])))[0], item)
            for row, item in enumerate(source.targets.tolist())
        ]
    )
    return tests @ train.T, (train * train).sum(1)


def test_a_sample_of_events_has_the_same_influences():
    model, dataset, config = prepared("sasrec")
    whole = source_of(model, dataset, config, "training")
    kept = np.flatnonzero(np.arange(whole.examples.terms) % 3 == 1)
    some = source_of(model, dataset, config, "training", kept)
    limits = Limits(1 << 30, 5)
    matrix = found_matrix(whole, ONCE, limits)
    torch.testing.assert_close(found_matrix(some, ONCE, limits), matrix[:, kept])
    assert [e.tolist() for e in some.examples.events(np.arange(3))] == [
        e.tolist() for e in whole.examples.events(kept[:3])
    ]


@pytest.mark.parametrize("part", ["valid", "test"])
def test_an_event_of_a_part_is_predicted_from_what_came_before_it(part, tmp_path):
    settings = {"model.width": 8, "model.max_length": 4, "device": "cpu", "threads": 1}
    out = tmp_path / "run"
    api.train("sasrec", sequences(9, 24), settings=settings, epochs=2, out=str(out), quiet=True)
    found = compute_influence(out, Selection(part=part), Options(topk=3), quiet=True)
    loaded = api.load(out)
    dataset, known = loaded.dataset, (TRAIN,) if part == "valid" else (TRAIN, VALID)
    users, items = part_of_events(dataset, part)
    queries = RecommenderQueries(users, dataset.histories(*known).take(users))
    phase = loaded.model.phases(dataset, loaded.config.training)[0]
    loss = found.about["loss"]
    examples = FactoredEvents(loaded.model, phase, queries, items, loss, Arithmetic())
    lr = loaded.config.training.lr
    once = [Checkpoint("only", lr, lambda: None)]
    matrix = found_matrix(FactoredSource(examples, Arithmetic()), once, Limits(1 << 30, 7))
    ranked = [row for row in found.table.to_pylist() if row["rank"] == 1]
    strongest = {(row["test"], row["kind"]): row["influence"] for row in ranked}
    for number, row in enumerate(matrix, 1):
        for kind, value in (("proponent", row.max()), ("opponent", row.min())):
            if value * (1 if kind == "proponent" else -1) > 0:
                assert strongest[number, kind] == pytest.approx(value.item(), rel=1e-4)
