"""BM3 against its equations in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hasten.config import TrainingOptions
from hasten.models.interface import Sizes
from hasten.models.multimodal.bm3 import BM3, BM3Options
from hasten.ops.random import Stream, key, uniform
from tests.models.multimodal.modal_data import (
    ITEMS,
    USERS,
    adjacency,
    assert_same_loss,
    judged,
    loss_of,
    modal_dataset,
)


def build(widths=(5, 4), **options):
    dataset = modal_dataset(widths)
    torch.manual_seed(0)
    model = BM3(BM3Options(**{"width": 3, **options}), Sizes.of(dataset)).double()
    (phase,) = model.phases(dataset, TrainingOptions(batch_size=6))
    return dataset, model, phase


def naive(model):
    """[N + U, D] H by the equations, densely."""
    a = adjacency()
    root = a.sum(1).clamp(min=1).sqrt()
    layers = [torch.cat([model.items, model.users])]
    for _ in range(model.options.layers):
        layers.append(a / root[:, None] / root[None] @ layers[-1])
    mean = sum(layers) / len(layers)
    return torch.cat([mean[:ITEMS] + model.items, mean[ITEMS:]])


@pytest.mark.parametrize(
    "options",
    [{}, {"layers": 0, "dropout": 0.0}, {"layers": 3, "modal_weight": 0.0, "l2": 0.0}],
    ids=str,
)
@pytest.mark.parametrize("widths", [(5,), (5, 4, 3)])
def test_loss_and_gradients_are_those_of_the_equations(options, widths):
    dataset, model, phase = build(widths, **options)
    rate, weight, l2 = (model.options.dropout, model.options.modal_weight, model.options.l2)
    batch = phase.plan(3, 1, 1)
    ours = loss_of(phase, batch, parts=2)
    pairs = phase.pairs(batch, batch.ids)
    seed = key(batch.seed, Stream.DROPOUT, batch.epoch, batch.index)

    def target(x, number):
        drawn = uniform(key(seed, number), torch.arange(len(x))[:, None], torch.arange(3))
        return torch.where(drawn >= rate, x / (1 - rate), 0.0).detach()

    def distance(x, y):
        online = x @ model.predictor.weight.T + model.predictor.bias
        return 1 - F.cosine_similarity(online, y, dim=1)

    h = naive(model)
    u, i = pairs.user + ITEMS, pairs.positive
    aim = target(h, 0)
    expected = (distance(h[u], aim[i]) + distance(h[i], aim[u])).mean()
    for number, modality in enumerate(dataset.modalities if weight else (), 1):
        one = model.projections[modality.name]
        e = torch.from_numpy(modality.values).double() @ one.weight.T + one.bias
        both = distance(e[i], aim[i]) + distance(e[i], target(e, number)[i])
        expected = expected + weight * both.mean()
    expected = expected + l2 * (h[:ITEMS].norm() + h[ITEMS:].norm()) / ITEMS
    assert_same_loss(model, ours, expected)


def test_judging_is_the_product_of_predictions():
    dataset, model, phase = build()
    with torch.inference_mode():
        h = naive(model)
        expected = h @ model.predictor.weight.T + model.predictor.bias
    judged(dataset, model, expected)
    loss_of(phase, phase.plan(0, 0, 0)).backward()
    assert phase.state()["vectors"].shape == (ITEMS + USERS, 3)


def test_dropout_depends_on_the_node_alone():
    _, model, _ = build(dropout=0.5)
    x = torch.ones(6, 3, dtype=torch.float64)
    nodes = torch.tensor([1, 2, 4, 7, 9, 11])
    some = model.target(x, nodes, 5)
    assert set(some.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(model.target(x[:2], nodes[[1, 3]], 5), some[[1, 3]])
    assert not torch.equal(model.target(x, nodes, 6), some)
