"""FREEDOM against its equations in float64, and its sampled pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hasten.config import TrainingOptions
from hasten.errors import ConfigurationError
from hasten.models.interface import Sizes
from hasten.models.multimodal.freedom import FREEDOM, FREEDOMOptions
from tests.models.multimodal.modal_data import (
    HELD,
    ITEMS,
    USERS,
    adjacency,
    assert_same_loss,
    judged,
    loss_of,
    modal_dataset,
    naive_item_graph,
)

PAIRS = sum(len(held) for held in HELD)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))


def build(widths=(5, 4), **options):
    dataset = modal_dataset(widths)
    torch.manual_seed(0)
    chosen = FREEDOMOptions(**{"width": 3, "neighbours": 4, "pruned": 0.5, **options})
    model = FREEDOM(chosen, Sizes.of(dataset)).double()
    (phase,) = model.phases(dataset, TrainingOptions(batch_size=6))
    return dataset, model, phase


def dense(graph):
    found = torch.zeros(graph.structure.shape, dtype=torch.float64)
    found[graph.structure.rows, graph.structure.columns.long()] = graph.weights.values.double()
    return found


def naive(model, dataset, a):
    """[N + U, D] by the equations, densely. a: 0/1 [N + U, N + U], the graph of pairs."""
    options = model.options
    root = a.sum(1).clamp(min=1).sqrt()
    layers = [torch.cat([model.items, model.users])]
    for _ in range(options.layers):
        layers.append(a / root[:, None] / root[None] @ layers[-1])
    x, h = sum(layers) / len(layers), model.items
    for _ in range(options.mm_layers):
        h = naive_item_graph(model, dataset) @ h
    if options.mm_layers:
        x = torch.cat([x[:ITEMS] + h, x[ITEMS:]])
    return x


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": 1, "mm_layers": 2, "pruned": 0.0},
        {"layers": 3, "mm_layers": 0, "pruned": 0.3},
        {"modal_weight": 0.0, "first_weight": 0.7, "neighbours": 40},
    ],
    ids=str,
)
@pytest.mark.parametrize("widths", [(5,), (5, 4, 3)])
def test_loss_and_gradients_are_those_of_the_equations(options, widths):
    options = {"modal_weight": 0.5, **options}
    if len(widths) == 1:
        options.pop("first_weight", None)
    dataset, model, phase = build(widths, **options)
    batch = phase.plan(3, 1, 1)
    ours = loss_of(phase, batch, parts=2)
    a = (dense(model._sampled(3, 1)) > 0).double() if options.get("pruned", 0.5) else adjacency()
    pairs = phase.pairs(batch, batch.ids)
    vectors = naive(model, dataset, a)
    u, i, j = (vectors[n] for n in (pairs.user + ITEMS, pairs.positive, pairs.negative))
    expected = -F.logsigmoid((u * i).sum(1) - (u * j).sum(1)).mean()
    for modality in dataset.modalities if options["modal_weight"] else ():
        f = torch.from_numpy(modality.values).double() @ model.projections[modality.name].weight.T
        scores = (u * f[pairs.positive]).sum(1) - (u * f[pairs.negative]).sum(1)
        expected = expected - options["modal_weight"] * F.logsigmoid(scores).mean()
    assert_same_loss(model, ours, expected)


def test_an_epoch_sees_a_sample_of_the_pairs():
    _, model, _ = build()
    whole = adjacency()
    graphs = [dense(model._sampled(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    for graph in graphs:
        kept = (graph > 0).double()
        assert kept.sum() == 2 * (PAIRS // 2)
        assert (kept <= whole).all()
        root = kept.sum(1).clamp(min=1).sqrt()
        torch.testing.assert_close(graph, kept / root[:, None] / root[None])
    assert len({tuple(graph.view(-1).tolist()) for graph in graphs}) == 4
    assert torch.equal(dense(model._sampled(1, 1)), graphs[3])


def test_pairs_are_sampled_by_their_degrees():
    """With one pair kept, its probability is proportional to 1 / sqrt(d_u d_i)."""
    _, model, _ = build(pruned=0.94)
    a = adjacency()
    degree = a.sum(1)
    weights = torch.triu(a / (degree[:, None] * degree[None]).clamp(min=1).sqrt())
    counts, draws = torch.zeros_like(a), 3000
    for epoch in range(draws):
        graph = model._sampled(0, epoch).structure
        counts[graph.rows[0], graph.columns[0].long()] += 1
    expected = weights / weights.sum() * draws
    there = expected > 0
    assert counts.sum() == draws == counts[there].sum()
    deviation = (counts - expected)[there] / expected[there].sqrt()
    assert np.abs(deviation.numpy()).max() < 4


def test_judging_is_the_whole_graph():
    dataset, model, phase = build()
    with torch.inference_mode():
        expected = naive(model, dataset, adjacency())
    judged(dataset, model, expected)
    loss_of(phase, phase.plan(0, 0, 0)).backward()
    assert phase.state()["vectors"].shape == (ITEMS + USERS, 3)


def test_one_modality_needs_no_weight():
    with pytest.raises(ConfigurationError, match="first_weight"):
        build((5,), first_weight=0.5)
